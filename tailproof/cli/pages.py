"""A check report for other programs: JUnit XML, and a page of HTML."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import jinja2

from spec.rules import RULES
from tailproof.cli import text
from tailproof.jobs.check import CheckReport


def junit(report: CheckReport) -> str:
    """The verdicts as JUnit XML: one test case a rule and target; known and unrun rules are skips."""
    verdicts = [item.verdict for item in report.verdicts]
    broken, skipped = verdicts.count("broken"), len(verdicts) - verdicts.count("held")
    suite = ElementTree.Element(
        "testsuite",
        name="tailproof",
        tests=str(len(verdicts)),
        failures=str(broken),
        skipped=str(skipped - broken),
    )
    for item in report.verdicts:
        case = ElementTree.SubElement(suite, "testcase", classname=item.target, name=item.rule)
        if item.verdict == "broken":
            ElementTree.SubElement(case, "failure", message=item.reason)
        elif item.verdict != "held":
            ElementTree.SubElement(case, "skipped", message=f"{item.verdict}: {item.reason}")
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode")


def html(report: CheckReport, strict: bool) -> str:
    """The verdicts and divergences as one self-contained page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("report.html.j2").render(
        summary=text.summary(report, strict),
        verdicts=report.verdicts,
        rules=RULES,
        fuzzed=report.fuzzed,
        lines=text.divergence_lines,
    )
