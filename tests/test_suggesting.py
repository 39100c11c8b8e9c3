"""Unknown images, images to label next, unknown images that look alike, and labels that look wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import normalize

from conftest import coloured_images, seeded, small_config
from ffcil.classifier.classifier import Classifier
from ffcil.classifier.suggesting import alike, distance_between_classes, doubt_labels, probably_wrong, spread, suggest
from ffcil.classifier.unknown import measure_detection
from ffcil.data.image_set import ImageSet
from ffcil.errors import InputError

pytestmark = pytest.mark.usefixtures("pixel_features")
CONFIG = small_config(method="anyarrival", image_size=16)


def write(images: ImageSet, root: Path, names: list[str] | None = None) -> list[Path]:
    """Write images as files of class folders. Returns the files in order."""
    files = []
    for k, (image, label) in enumerate(zip(images.images, images.labels.tolist(), strict=True)):
        folder = root / (names[k] if names else images.class_names[label])
        folder.mkdir(parents=True, exist_ok=True)
        files.append(folder / f"{k:03d}.png")
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(files[-1])
    return files


def of_classes(images: ImageSet, *labels: int) -> ImageSet:
    """The images of some classes."""
    return images.subset(torch.isin(images.labels, torch.tensor(labels)).nonzero().flatten())


# --- unknown images -----------------------------------------------------------------------------------------------


def test_detection_equals_counts_by_a_loop() -> None:
    known, unknown = torch.randn(30, 4, generator=seeded(1)) * 3, torch.randn(20, 4, generator=seeded(2))
    novelty, other = torch.randn(30, generator=seeded(3)), torch.randn(20, generator=seeded(4)) + 1
    found = measure_detection((known, novelty), (unknown, other), limit=0.8)
    alarms = sum(float(value) > 0.8 for value in novelty)
    assert 0 < alarms < 30
    assert found.false_alarms == pytest.approx(100 * alarms / 30)
    assert found.found == pytest.approx(100 * sum(float(value) > 0.8 for value in other) / 20)
    assert found.auroc == pytest.approx(100 * np.mean([[float(u > k) for k in novelty] for u in other]))
    doubts, other_doubts = (1 - scores.softmax(1).max(1).values for scores in (known, unknown))
    assert found.softmax_auroc == pytest.approx(100 * np.mean([[float(u > k) for k in doubts] for u in other_doubts]))
    threshold = sorted(doubts.tolist())[-alarms - 1]  # exactly as many known images are above it
    assert sum(value > threshold for value in doubts.tolist()) == alarms
    assert found.softmax_found == pytest.approx(100 * sum(value > threshold for value in other_doubts.tolist()) / 20)


def test_unknown_images_are_told_and_measured() -> None:
    train, test = coloured_images([30] * 6, 1), coloured_images([10] * 6, 2)
    classifier = Classifier(CONFIG, "cpu")
    classifier.learn(of_classes(train, 0, 1, 2, 3))
    known, strange = of_classes(test, 0, 1, 2, 3), of_classes(test, 4, 5)
    measured = classifier.test(known, list(strange.images), false_alarms=0.1)
    answers = classifier.answer(list(strange.images), false_alarms=0.1)
    told = [answer.unknown for answer in answers if answer is not None]
    assert measured["unknown"]["found"] == pytest.approx(100 * sum(told) / len(told))
    alarms = [answer.unknown for answer in classifier.answer(list(known.images), false_alarms=0.1) if answer]
    assert measured["unknown"]["false_alarms"] == pytest.approx(100 * sum(alarms) / len(alarms))
    assert measured["unknown"]["images"] == 20
    assert "unknown" not in classifier.test(known)
    assert not any(answer.unknown for answer in classifier.answer(list(strange.images), false_alarms=None) if answer)


@pytest.mark.parametrize("rate", [0, 1, -0.1, 5, float("nan")])
def test_a_rate_of_false_alarms_is_a_share(rate: float) -> None:
    classifier = Classifier(CONFIG, "cpu")
    images = coloured_images([30, 30], 1)
    classifier.learn(images)
    some = list(images.images[:2])
    for ask in (
        lambda: classifier.answer(some, false_alarms=rate),
        lambda: classifier.test(images, some, rate),
        lambda: suggest(classifier, some, false_alarms=rate),
    ):
        with pytest.raises(InputError, match=f"The rate of false alarms is {rate}: choose one between 0 and 1"):
            ask()


# --- images to label ----------------------------------------------------------------------------------------------


def test_images_to_label_are_uncertain_and_differ() -> None:
    """Two uncertain images are equal: the second one waits for an uncertain image that differs."""
    directions = normalize(torch.tensor([[1.0, 0], [1, 0.01], [0, 1], [-1, 0]]))
    uncertainty = torch.tensor([0.9, 0.89, 0.8, 0.01])
    assert spread(uncertainty, directions, 2) == [0, 2]
    assert sorted(spread(uncertainty, directions, 9)) == [0, 1, 2, 3]
    assert spread(torch.ones(3), torch.tensor([[1.0, 0], [1, 0], [1, 0]]), 3) == [0, 1, 2]


def test_groups_of_images_that_look_alike() -> None:
    made = torch.Generator().manual_seed(0)
    centres = torch.eye(8)[[0, 0, 0, 0, 3, 3, 3, 5]]
    directions = normalize(centres + 0.05 * torch.randn(8, 8, generator=made))
    assert alike(directions, 0.5) == [[0, 1, 2, 3], [4, 5, 6]]  # one image alone is no group
    assert alike(directions[:2], 0.5) == []


def test_the_limit_of_a_group_is_between_the_distances_within_and_between_classes() -> None:
    directions = normalize(torch.randn(12, 5, generator=seeded(1)))
    targets = torch.arange(3).repeat(4)
    within, between = [], []
    for a in range(12):
        for b in range(12):
            if a != b:
                (within if targets[a] == targets[b] else between).append(1 - float(directions[a] @ directions[b]))
    assert distance_between_classes(directions, targets) == pytest.approx((np.mean(within) + np.mean(between)) / 2)
    assert distance_between_classes(directions[:1], targets[:1]) == 0.5


def test_suggestions_for_files(tmp_path: Path) -> None:
    """Two new colours among known ones become two groups."""
    train, photos = coloured_images([30] * 6, 1), coloured_images([6] * 6, 2)
    classifier = Classifier(CONFIG, "cpu")
    classifier.learn(of_classes(train, 0, 1, 2, 3))
    files = write(photos, tmp_path)
    (tmp_path / "bad.png").write_bytes(b"nothing")
    everything = [tmp_path / "bad.png", *files]
    with pytest.raises(InputError, match=r"bad\.png"):
        suggest(classifier, everything)
    found = suggest(classifier, everything, count=5, false_alarms=0.05, skip_bad=True)
    assert [each.order for each in found if each.order] == [1, 2, 3, 4, 5]
    answers = classifier.answer(everything, false_alarms=0.05, skip_bad=True)
    for each in found:
        answer = answers[each.image]
        assert answer is not None
        assert (each.guess.name, each.unknown) == (answer.guesses[0].name, answer.unknown)
    groups: dict[int, list[str]] = {}
    for each in found:
        if each.group is not None:
            assert each.unknown
            groups.setdefault(each.group, []).append(everything[each.image].parent.name)
    assert {"colour 4", "colour 5"} <= {max(members, key=members.count) for members in groups.values()}
    for members in groups.values():
        assert len(members) >= 3
        assert max(map(members.count, members)) >= 0.8 * len(members)  # mostly of one colour
    other = Classifier(small_config(method="simplecil", image_size=16), "cpu")
    other.learn(train)
    with pytest.raises(InputError, match="SimpleCIL cannot compare images"):
        suggest(other, files)


def test_a_classifier_without_classes_suggests_nothing(tmp_path: Path) -> None:
    photos = coloured_images([2, 2], 1)
    classifier = Classifier(CONFIG, "cpu")
    classifier.learn(photos)
    classifier.forget(photos.class_names)
    with pytest.raises(InputError, match="knows no classes yet: teach it some first"):
        suggest(classifier, write(photos, tmp_path))


# --- labels that look wrong ---------------------------------------------------------------------------------------


def test_rate_and_temperature_have_the_highest_likelihood_of_all_labels() -> None:
    """Images whose true class is known up to stated probabilities, and labels of which every fifth is wrong."""
    classes, images, rate = 4, 4000, 0.2
    logits = 3 * torch.randn(images, classes, generator=seeded(3))
    true = logits.softmax(1).multinomial(1, generator=seeded(4))[:, 0]
    flipped = torch.rand(images, generator=seeded(5)) < rate
    labels = torch.where(flipped, (true + torch.randint(1, classes, (images,), generator=seeded(6))) % classes, true)
    wrong, probabilities = probably_wrong(70 * logits, labels)  # the scale of scores does not matter
    torch.testing.assert_close(probabilities.float(), logits.softmax(1), rtol=0, atol=0.06)
    assert wrong.mean().item() == pytest.approx(rate, abs=0.04)
    own = probabilities.gather(1, labels[:, None])[:, 0]

    def likelihood(share: float) -> float:
        return float((share * (1 - own) / (classes - 1) + (1 - share) * own).log().sum())

    best = max((share / 1000 for share in range(1, 999)), key=likelihood)  # a naive search
    assert wrong.mean().item() == pytest.approx(best, abs=2e-3)
    for row in range(0, images, 100):  # Bayes' rule by hand
        bad = best * (1 - float(own[row])) / (classes - 1)
        assert float(wrong[row]) == pytest.approx(bad / (bad + (1 - best) * float(own[row])), abs=0.01)
    sure = wrong > 0.5
    assert flipped[sure].double().mean().item() == pytest.approx(wrong[sure].mean().item(), abs=0.05)


def test_a_single_class_has_no_wrong_labels() -> None:
    wrong, probabilities = probably_wrong(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))
    assert wrong.tolist() == [0, 0, 0]
    assert probabilities.tolist() == [[1], [1], [1]]


@pytest.mark.parametrize("learned", [True, False])
def test_wrong_labels_are_found_whether_they_were_learned_or_not(tmp_path: Path, learned: bool) -> None:
    images = coloured_images([40] * 4, 1)
    names = [images.class_names[int(label)] for label in images.labels]
    # colours 0 and 1 are similar, so that they cannot be told apart with certainty
    wrong = {row: images.class_names[(row // 40 + 2) % 4] for row in (3, 12, 45, 50, 87, 94, 130, 140)}
    given = [wrong.get(row, name) for row, name in enumerate(names)]
    files = write(images, tmp_path / "given", given)
    classifier = Classifier(CONFIG, "cpu")
    classifier.learn(tmp_path / "given" if learned else coloured_images([40] * 4, 5))
    doubts = doubt_labels(classifier, tmp_path / "given")
    assert {doubt.image for doubt in doubts} == {str(files[row]) for row in wrong}
    for doubt in doubts:
        row = int(Path(doubt.image).stem)
        assert (doubt.label.name, doubt.instead.name) == (wrong[row], names[row])
        assert doubt.label.score < doubt.instead.score
        assert doubt.wrong > 0.5


def test_scores_of_learned_images_are_those_of_a_classifier_without_them() -> None:
    images = coloured_images([8] * 3, 1)
    noise = torch.randn(24, 3, 1, 1, generator=seeded(11)) * 50
    images = replace(images, images=(images.images + noise).clamp(0, 255).to(torch.uint8))
    classifier = Classifier(CONFIG, "cpu")
    classifier.learn(images)
    scores, labels = classifier.unlearned_scores(images)
    assert labels.equal(images.labels)
    plain = classifier._scores(images.images)
    assert (scores.argmax(1) == labels).float().mean() < (plain.argmax(1) == labels).float().mean()
    counts = classifier.learner.left_out_counts()
    assert counts is not None
    assert int((scores.argmax(1) == labels).sum()) == int(counts[0].sum())
    new = coloured_images([4] * 3, 9)
    unseen = classifier.unlearned_scores(new)[0]
    assert unseen.argsort(dim=1).equal(classifier._scores(new.images).argsort(dim=1))
