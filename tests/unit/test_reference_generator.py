"""The task generator: deterministic, within its number range, and honest about what it holds out."""

from __future__ import annotations

import subprocess
import sys

import pytest

from outrider_models.arithmetic import MAX_STEPS, MIN_STEPS
from outrider_models.chat import CHAT_TEMPLATE, END, render_prompt
from outrider_models.corpus import DOCUMENT_KINDS, write_documents
from outrider_models.lexicon import HELD_OUT_PEOPLE, PEOPLE
from outrider_models.stories import LEAD_INS, OPENING_LEAD_INS, OPENINGS, PATTERNS, QUESTIONS, Operator, all_wordings, lead
from outrider_models.tasks import TASK_KINDS, make_tasks


@pytest.mark.parametrize("kind", TASK_KINDS)
@pytest.mark.parametrize("held_out", [False, True])
def test_same_seed_gives_the_same_tasks_and_a_longer_list_extends_a_shorter(kind: str, held_out: bool) -> None:
    shorter, longer = make_tasks(kind, 5, 3, held_out), make_tasks(kind, 12, 3, held_out)
    assert longer[:5] == shorter
    assert make_tasks(kind, 5, 4, held_out) != shorter


@pytest.mark.parametrize("kind", DOCUMENT_KINDS)
def test_training_documents_are_deterministic(kind: str) -> None:
    assert list(write_documents(kind, 20, 1)) == list(write_documents(kind, 20, 1))
    assert list(write_documents(kind, 20, 1)) != list(write_documents(kind, 20, 2))


def test_unknown_kind_and_negative_number_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown task kind 'poetry'"):
        make_tasks("poetry", 1, 0, False)
    with pytest.raises(ValueError, match="negative"):
        make_tasks("prose", -1, 0, False)


def test_problems_stay_in_range_and_use_every_operator_and_step_count() -> None:
    problems = [task.problem for task in make_tasks("arithmetic", 600, 5, held_out=False)]
    steps = [step for problem in problems if problem is not None for step in problem.steps]
    assert all(0 <= number <= 999 for step in steps for number in (step.left, step.right, step.result))
    assert {step.operator for step in steps} == set(Operator)
    lengths = {len(problem.steps) for problem in problems if problem is not None}
    assert lengths == set(range(MIN_STEPS, MAX_STEPS + 1))
    three_digits = sum(max(step.left, step.right, step.result) >= 100 for step in steps)
    assert 0.3 < three_digits / len(steps) < 0.9
    for problem in problems:
        assert problem is not None
        assert problem.answer == problem.steps[-1].result


def test_held_out_names_and_sentences_never_reach_training() -> None:
    documents = "\n".join(document for kind in DOCUMENT_KINDS for document in write_documents(kind, 800, 7))
    for person in HELD_OUT_PEOPLE:
        assert person.name not in documents
    assert any(person.name in documents for person in PEOPLE)
    for task in make_tasks("arithmetic", 800, 7, held_out=False):
        assert task.problem is not None
        assert not task.problem.held_out_pattern
        assert not any("held" in key for key in task.problem.patterns)


def test_held_out_tasks_use_the_held_out_names_and_every_held_out_sentence() -> None:
    tasks = make_tasks("arithmetic", 800, 7, held_out=True)
    named = sum(any(person.name in task.prompt for person in HELD_OUT_PEOPLE) for task in tasks)
    assert named > 0.97 * len(tasks)  # a story of few sentences may name nobody
    assert not any(f" {person.name} " in task.prompt for task in tasks for person in PEOPLE)
    seen = {key for task in tasks if task.problem for key in task.problem.patterns}
    held_out = {pattern.key for pattern in PATTERNS if pattern.held_out}
    held_out |= {framing.key for framing in (*OPENINGS, *QUESTIONS) if framing.held_out}
    assert held_out <= seen


def test_no_wording_of_a_training_sentence_is_a_held_out_sentence() -> None:
    written = [(each.held_out, each.tell) for each in PATTERNS] + [(each.held_out, each.tell) for each in (*OPENINGS, *QUESTIONS)]
    sentences = [(kept, wording) for kept, tell in written for wording in all_wordings(tell)]
    held_out = {_bare(wording) for kept, wording in sentences if kept}
    known = {_bare(wording) for kept, wording in sentences if not kept}
    assert len(known) > 200
    assert not known & held_out


def _bare(sentence: str) -> str:
    """Without a lead-in and whichever way the person is named: what is left must differ."""
    for lead_in in (*LEAD_INS, *OPENING_LEAD_INS):
        sentence = sentence.removeprefix(lead_in)
    return sentence.replace("{she}", "{name}").lower()


def test_a_lead_in_names_the_person_and_lowers_an_ordinary_word() -> None:
    assert lead("Then ", "{she} sells {n}.") == "Then {name} sells {n}."
    assert lead("Then ", "{friend} gives {n}.") == "Then {friend} gives {n}."
    assert lead("Then ", "A thief steals {n}.") == "Then a thief steals {n}."
    assert lead("Then ", "{n} break.") == "Then {n} break."


def test_copying_answers_are_mostly_taken_from_the_request() -> None:
    for task in make_tasks("copying", 100, 2, held_out=True):
        words = task.reference.split()
        copied = sum(word.strip('",.:{}[]') in task.prompt for word in words)
        assert copied / len(words) > 0.7, task.variant
        assert task.is_correct(task.reference)
        assert not task.is_correct(task.reference.replace(words[-2], "zzz", 1))


def test_chat_template_renders_as_training_does() -> None:
    from jinja2 import Template

    task = make_tasks("prose", 1, 1, held_out=False)[0]
    first = {"role": "user", "content": task.prompt}
    template = Template(CHAT_TEMPLATE)
    asked = template.render(bos_token="<|bos|>", messages=[first], add_generation_prompt=True)
    assert asked == render_prompt(task.prompt)
    answered = [first, {"role": "assistant", "content": task.reference}]
    assert template.render(bos_token="<|bos|>", messages=answered) == f"{asked}{task.reference}{END}"


def test_public_task_api_imports_no_torch() -> None:
    code = "import sys, outrider_models.tasks, outrider_models.paths; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, check=False).returncode == 0
