"""A fault beside a known one is new, and one that does the same is explained by it."""

from __future__ import annotations

import pytest

from spec.rules import RULES
from tests.reference.neighbours import BASELINE, NEIGHBOURS, TWINS, Plant, judged, observations
