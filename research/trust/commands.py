"""Commands of the long checks.

Annotations are read by typer, so they are ordinary objects here.
"""

from pathlib import Path
from typing import Annotated

import typer

from research.options import Out, OutFolder, RunFolders, Seeds, with_settings
from research.publishing.paper import RESULTS
from research.publishing.study_file import show
from research.trust.calibration import Settings
from research.trust.calibration import study as study_calibration
from research.trust.cifar10_hmc import study as study_cifar10
from research.trust.coverage import pieces
from research.trust.coverage import study as study_coverage
from research.trust.faults.study import Cases
from research.trust.faults.study import study as study_faults
from research.trust.fuzz import Budget
from research.trust.fuzz import study as study_fuzz
from research.trust.gold.methods import Training
from research.trust.gold.nuts import Chains
from research.trust.gold.study import study_methods, study_nuts
from research.trust.mutation.study import AREAS, Choice
from research.trust.mutation.study import study as study_mutants
from research.trust.properties import Long
from research.trust.properties import study as study_properties

app = typer.Typer(no_args_is_help=True, help="Long checks of posteriors.")

_TRUST = RESULTS / "trust"


@app.callback()
def long_checks() -> None:
    """Long checks of posteriors."""


@app.command(epilog="Example: python -m research trust calibration --simulations 200")
@with_settings(Settings)
def calibration(settings: Settings, out: Out = _TRUST / "calibration.json") -> None:
    """Rank true parameters among draws of every fitted family, on two small models."""
    study_calibration(settings, out, show("spread", "worst", "duration"))


@app.command(epilog="Example: python -m research trust nuts --chains 4")
@with_settings(Chains)
def nuts(settings: Chains, out: OutFolder = _TRUST / "gold") -> None:
    """Sample the posteriors of five small problems with NUTS; needs the extra gold."""
    study_nuts(settings, out, show("rhat_median", "rhat_95", "duration"))


@app.command(epilog="Example: python -m research trust gold --seeds 3")
@with_settings(Training)
def gold(settings: Training, seeds: Seeds = 3, out: OutFolder = _TRUST / "gold") -> None:
    """Train every family and compare its predictions with those of NUTS."""
    study_methods(settings, seeds, out, show("total_variation", "std_ratio", "nll"))


@app.command(epilog="Example: python -m research trust mutants --area metrics --mutants 60")
@with_settings(Choice)
def mutants(
    settings: Choice,
    area: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(AREAS)}. May be repeated. All.")
    ] = None,
    out: Out = _TRUST / "mutants.json",
) -> None:
    """Plant small errors and run the tests; a second call tries survivors again."""
    study_mutants(settings, area or list(AREAS), out, show("verdict", "tests", "duration"))


@app.command(epilog="Example: python -m research trust coverage --data runs/coverage")
def coverage(
    data: Annotated[Path, typer.Option(help="Folder of measured pieces; a stopped run resumes.")],
    tests: Annotated[
        list[str] | None, typer.Option(help="Folder or file of tests. May be repeated. All.")
    ] = None,
    out: Out = _TRUST / "coverage.json",
) -> None:
    """Count lines and branches that the suite runs; what runs in other processes is not seen."""
    study_coverage(data, tests or pieces(), out, show("duration"))


@app.command(epilog="Example: python -m research trust faults --cases 200")
@with_settings(Cases)
def faults(settings: Cases, out: Out = _TRUST / "faults.json") -> None:
    """Kill, stop and starve commands, and change their files; disks need the rights of root."""
    study_faults(settings, out, show("command", "fault", "problem"))


@app.command(epilog="Example: python -m research trust cifar10-hmc runs/cifar10-wrn-gaussian")
def cifar10_hmc(runs: RunFolders, out: Out = _TRUST / "cifar10_hmc.json") -> None:
    """Compare finished CIFAR-10 runs with public predictions of long HMC chains."""
    study_cifar10(runs, out, show("agreement", "total_variation", "accuracy"))


@app.command(epilog="Example: python -m research trust fuzz --rounds 4")
@with_settings(Budget)
def fuzz(settings: Budget, out: Out = _TRUST / "fuzz.json") -> None:
    """Read files with seeded changes: models, recipes, tables, checkpoints, studies."""
    study_fuzz(settings, out, show("mutations", "accepted", "slowest"))


@app.command(epilog="Example: python -m research trust properties --examples 1250")
@with_settings(Long)
def properties(settings: Long, out: Out = _TRUST / "properties.json") -> None:
    """Run the property tests with many examples."""
    study_properties(settings, out, show("examples", "passed", "problem", "duration"))
