"""The table of verdicts is whole, and says what the design says."""

import pytest

from service.verdicts import VERDICTS, Verdict, parse_verdict

NOT_FAILING = {"agree", "agree_untraced", "refused", "insensitive", "unsupported", "infra", "invalid"}


def test_every_verdict_of_the_design_has_its_entry() -> None:
    words = (
        "agree agree_untraced zero_gradient partial_zero no_gradient scaled permuted mismatch nondeterministic "
        "wrong_shape forward_mismatch mutated leak raised partial_raise unimportable hang crash refused insensitive "
        "unsupported invalid infra"
    )
    assert " ".join(Verdict) == words
    assert list(VERDICTS) == list(Verdict)


def test_only_the_subjects_faults_fail() -> None:
    assert {verdict.value for verdict in Verdict if not verdict.failing} == NOT_FAILING
    assert {verdict.value for verdict in Verdict if verdict.incomplete} == {"invalid", "infra"}
    assert {verdict.value for verdict in Verdict if verdict.settled} == {"agree", "agree_untraced", "refused"}


def test_words_are_unlike_and_fit_a_cell() -> None:
    assert len({info.short for info in VERDICTS.values()}) == len(VERDICTS)
    assert len({info.label for info in VERDICTS.values()}) == len(VERDICTS)
    assert all(len(info.short) <= 10 and info.meaning.endswith(".") for info in VERDICTS.values())
    # Colour alone never tells a fault from agreement, and no fault has agreement's colour.
    assert not any(info.failing and info.colour == "green" for info in VERDICTS.values())


def test_an_unknown_word_is_refused_by_name() -> None:
    assert parse_verdict("leak") is Verdict.LEAK
    with pytest.raises(ValueError, match=r"no verdict 'fine'.*agree"):
        parse_verdict("fine")
