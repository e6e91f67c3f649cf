"""Commands that say what there is: presets, schema, metrics, data; and fetch, which downloads some of it."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Argument

from lebm.cli.common import REPORTER, DataDir, app, print_table


@app.command()
def presets(name: Annotated[str | None, Argument(help="Show this one resolved, as YAML.")] = None) -> None:
    """List the presets, or show one."""
    from lebm.config import flatten, preset_names, resolve

    if name is not None:
        print(resolve(name).to_yaml(), end="")
        return
    rows = []
    for preset in preset_names():
        c = resolve(preset)
        values = flatten(c.to_dict())
        energy = values.get("method.energy.width")
        prior = values.get("method.base.kind") if energy is None else f"{energy} x {values['method.energy.depth']}"
        steps = [str(values.get(f"method.{target}_chain.steps", "")) for target in ("prior", "posterior")]
        rows.append([preset, _made_by(c.generator), str(c.nz), str(prior or ""), *steps, f"{c.training.updates:,}"])
    print_table(["preset", "generator", "nz", "prior", "K0", "K1", "updates"], rows)


def _made_by(generator: Any) -> str:
    """What a generator makes, in words, from its section."""
    if generator.MODALITY == "image":
        return f"{generator.kind} {generator.size}x{generator.size}x{generator.channels}"
    if generator.MODALITY == "table":
        return f"{generator.kind}, {generator.columns} columns"
    return f"{generator.kind}, {getattr(generator, generator.SIZE_KEY)} units"


@app.command()
def schema() -> None:
    """Print the JSON schema of configuration files, for editors."""
    import json

    from lebm.config import json_schema

    print(json.dumps(json_schema(), indent=1))


@app.command()
def metrics() -> None:
    """List the metrics of `lebm evaluate --metrics`."""
    from lebm.measure import METRICS

    for m in METRICS.values():
        facts = [*([m.direction] if m.direction else []), f"for models of kind {' or '.join(m.modalities)}"]
        print(f"{m.name}: {m.title} ({'; '.join(facts)})\n    {m.about}")


@app.command()
def data(data_dir: DataDir = None) -> None:
    """Say for every known data set where it lies, or how to get it."""
    from lebm.data import DATASETS, data_root
    from lebm.data.download import INCEPTION_FILE, INCEPTION_HOW

    folder = data_root(data_dir)
    print(f"data folder: {folder}" if folder else "no data folder: set LEBM_DATA or give --data-dir")
    for name, dataset in DATASETS.items():
        place = dataset.find(folder)
        print(f"{name}: found in {place}" if place else f"{name}: not found\n    {dataset.how}")
        print(f"    {dataset.description}. Licence: {dataset.licence}")
    network = folder / INCEPTION_FILE if folder else None
    if network and network.is_file():
        print(f"inception: found in {network}")
    else:
        print(f"inception: not found\n    `lebm fetch inception`, or {INCEPTION_HOW}")
    print("    the network behind the FID. Licence: Apache 2.0")


@app.command()
def fetch(
    name: Annotated[str, Argument(metavar="NAME", help="A data set that can be fetched (`lebm data`), or inception.")],
    data_dir: DataDir = None,
) -> None:
    """Download a data set's official files, or the Inception network of the FID, into the data folder."""
    from lebm.data import data_root, download

    place, fetched = download.fetch(name, data_root(data_dir), REPORTER)
    print(f"{name}: {'fetched into' if fetched else 'already in'} {place}")
