"""From a run folder to metrics.json, figures and report.html."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from lebm import data as datasets
from lebm.core.errors import ConfigError, NotDefined
from lebm.core.lookup import did_you_mean
from lebm.core.progress import SILENT, Reporter
from lebm.measure import METRICS, draw, result
from lebm.measure.analysis import Subject
from lebm.measure.inception import Features
from lebm.measure.metric import Choice, Evaluation, Numbers, Target, choose
from lebm.method import Method
from lebm.run import Run, load

SPLITS = ("train", "test", "validation")
OWN: Choice = (None, None)


def evaluate(
    run: str | Path,
    metrics: Sequence[str] | None = None,
    *,
    samples: int | None = None,
    seed: int | None = None,
    split: str = "train",
    limit: int | None = None,
    device: str = "auto",
    data_dir: str | Path | None = None,
    reporter: Reporter = SILENT,
    pictures: bool = True,
    features: Features | None = None,
    prior: Choice = OWN,
    posterior: Choice = OWN,
) -> result.Result:
    """Measure a run, write metrics.json, draw its figures and report.html; returns what metrics.json holds.

    What metrics.json already says of the same weights and is not measured now stays in it. `split` names the images
    that the FID compares with, `train` or `test`; `validation` is for choosing settings, looks at no test image and
    writes validation.json instead. `features` stands in for Inception. `prior` and `posterior` are (start, steps) of
    samplers other than the run's own.
    """
    started = time.monotonic()
    _check(metrics, samples, split, limit)
    subject = Subject(run, device, data_dir, reporter)
    method, choices = subject.method, _choices(subject.method, prior, posterior)
    datasets.check(method.config)
    chosen = tuple(metrics or subject.default_metrics())
    _check_modality(method, chosen)
    if seed is None:
        seed = int(split == "validation")  # settings are chosen on other samples than those of published numbers
    how = {"samples": samples, "seed": seed, "split": split, "limit": limit, "features": features, "choices": choices}
    ev = subject.evaluation(any(METRICS[name].inception for name in chosen), **how)
    method.generator.set_facts(ev.splits.facts)  # a text with other words than the model's is refused
    if method.device.type == "cuda" and method.config.engine == "auto":
        from lebm import fast

        fast.accelerate(method, method.config.precision, reporter.say)
    if method.updates == 0:
        networks = "the networks it started from" if method.config.training.start_from else "random networks"
        reporter.say(f"note: this run has saved no update yet; these are numbers of {networks}")
    target = subject.run.path / ("validation.json" if split == "validation" else "metrics.json")
    summary: result.Result = {}
    about = {"name": method.config.name, "data": _data(ev, subject), "seed": ev.seed}
    with subject.threads():
        for numbers, protocol in measure(ev, chosen, required=metrics is not None):  # written as soon as each is known
            protocol = {**subject.weights(), **protocol}
            summary = merged(result.of_run(method, started, metrics=numbers, protocol=protocol, **about), target)
            result.write(target, summary)
        if pictures and split != "validation":
            from lebm.show import report

            draw.evaluation(subject.run, ev)
            report.write(subject.run.path)
    return summary


def _choices(method: Method, prior: Choice, posterior: Choice) -> dict[Target, Choice]:
    """The samplers that were asked for; what the method cannot draw by is said at once."""
    given: dict[Target, Choice] = {"prior": prior, "posterior": posterior}
    asked = {target: choice for target, choice in given.items() if choice != OWN}
    for target, choice in asked.items():
        choose(method, target, *choice)
    return asked


def _check(metrics: Sequence[str] | None, samples: int | None, split: str, limit: int | None) -> None:
    for name in metrics or ():
        if name not in METRICS:
            raise ConfigError(f"unknown metric {name!r}{did_you_mean(name, METRICS)}; there are {', '.join(METRICS)}")
    if samples is not None and samples < 2:
        raise ConfigError(f"samples is {samples}; a distance needs at least 2")
    if limit is not None and limit < 1:
        raise ConfigError(f"limit is {limit}; it must be at least 1")
    if split not in SPLITS:
        raise ConfigError(f"split is {split!r}; it must be one of {', '.join(SPLITS)}")


def _check_modality(method: Method, chosen: Sequence[str]) -> None:
    modality = method.generator.modality
    there = [name for name, metric in METRICS.items() if modality in metric.modalities]
    for name in chosen:
        if name not in there:
            raise ConfigError(f"the metric {name} is not for a model of kind {modality}; there are {', '.join(there)}")


def _data(ev: Evaluation, subject: Subject) -> dict[str, Any]:
    """What a result says of the data. A place inside the data folder is named from there: a published result should not
    name somebody's folders.
    """
    splits, source, root = ev.splits, Path(ev.splits.source), datasets.data_root(subject.data_dir)
    rows: dict[str, Tensor | None] = {"train": ev.train, "test": splits.test, "validation": splits.validation}
    inside = root is not None and source.is_relative_to(root)
    return {
        "name": ev.method.config.data.name,
        "source": source.relative_to(root).as_posix() if root and inside else splits.source,
        **{part: len(x) for part, x in rows.items() if x is not None},
        "sha256": ev.train_sha256,
    }


def measure(
    ev: Evaluation, chosen: Sequence[str], required: bool = True
) -> Iterator[tuple[Numbers, dict[str, dict[str, Any]]]]:
    """After every metric, or part of one: the numbers so far, and for each metric how it was measured.

    A metric for which the method lacks something is an error where it is `required`, otherwise a note.
    """
    numbers: Numbers = {}
    protocol: dict[str, dict[str, Any]] = {}
    for name in chosen:
        begun, ev.protocol = time.monotonic(), {}
        try:
            measured = METRICS[name].measure(ev)
            for part in [measured] if isinstance(measured, dict) else measured:
                numbers.update(part)
                where = {"device": result.device_name(ev.method.device), "code": result.code_version()}
                seconds = round(time.monotonic() - begun, 1)
                protocol[name] = {**ev.protocol, "seed": ev.seed, "seconds": seconds, **where}
                yield numbers, protocol
        except NotDefined as e:
            if required:
                raise
            ev.reporter.say(f"note: {name} is left out: {e}")


def merged(summary: result.Result, path: Path) -> result.Result:
    """With what the file says of the same weights and data beside it; a file about others, or a damaged one, counts as
    none.
    """
    old = result.read(path)
    try:
        same = all(old[key] == summary[key] for key in ("name", "config", "updates"))
        same = same and old["data"]["sha256"] == summary["data"]["sha256"]
        both = {key: {**old[key], **summary[key]} for key in ("metrics", "protocol")} if same else {}
    except (KeyError, TypeError):
        both = {}
    return {**summary, **both}


# --- several runs -----------------------------------------------------------------------------------------------------


def evaluate_all(
    runs: Sequence[str | Path], metrics: Sequence[str] | None = None, beside: bool = False, **options: Any
) -> result.Result:
    """Evaluate each run; of several runs (seeds) of one configuration the mean and the spread, each run's numbers in
    `per_seed`.

    `beside` sets different runs on one data set side by side instead: numbers, protocol and config by name.
    """
    if len(runs) > 1:
        _refuse_early(runs, metrics, beside, options)
    summaries = [evaluate(run, metrics, **options) for run in runs]
    if beside:
        return result.side_by_side(summaries)
    return summaries[0] if len(runs) == 1 else result.mean(summaries)


def _refuse_early(
    runs: Sequence[str | Path], metrics: Sequence[str] | None, beside: bool, options: Mapping[str, Any]
) -> None:
    """What does not go together is said before the work rather than after it."""
    configs, protocols = [], []
    for run in runs:
        method = load(run)
        _choices(method, options.get("prior", OWN), options.get("posterior", OWN))
        configs.append(method.config.to_dict())
        protocols.append({} if options.get("split") == "validation" else _unmeasured(Run(run), method, metrics))
    if beside:
        result.check_different(configs)
    else:
        result.check_one_configuration(configs)
        result.check_one_protocol(protocols)


def _unmeasured(run: Run, method: Method, metrics: Sequence[str] | None) -> dict[str, Any]:
    """How metrics.json says that those were measured which are not measured anew."""
    old = result.read(run.metrics_file)
    same = old.get("config") == method.config.to_dict() and old.get("updates") == method.updates
    protocol = old.get("protocol")
    if not (same and metrics and isinstance(protocol, dict)):
        return {}
    return {k: v for k, v in protocol.items() if k not in metrics}
