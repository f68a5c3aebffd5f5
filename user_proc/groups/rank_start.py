"""What a rank's process is started with: command, environment, folder, processors.

Rules: pure.
"""

from pathlib import Path

from user_proc.groups.group_plan import LaunchPlan, substitute, values_of
from user_proc.groups.guardian_packets import Spawn
from user_proc.groups.rank_run import RankRun
from user_proc.groups.rank_wire import (
    ENV_GROUP,
    ENV_KERNEL,
    ENV_PROCESS,
    ENV_RANK,
    ENV_SIZE,
    ENV_SOCKET,
    ENV_TOKEN,
)


def spawn_packet(run: RankRun, plan: LaunchPlan, kernel: str, endpoint: Path, token: str) -> Spawn:
    """Return the order to start a process of a rank."""
    group, rank = run.group, run.who.rank
    values = values_of(group, rank, kernel)
    environment = {
        **{name: substitute(text, values) for name, text in group.environment.items()},
        ENV_GROUP: group.name,
        ENV_RANK: str(rank),
        ENV_SIZE: str(group.count),
        ENV_KERNEL: kernel,
        ENV_PROCESS: str(run.who),
        ENV_SOCKET: str(endpoint),
        ENV_TOKEN: token,
        "PYTHONUNBUFFERED": "1",  # so that a log has what was printed before a crash
    }
    return Spawn(
        number=run.number,
        command=[substitute(part, values) for part in (*group.command, *group.arguments)],
        environment=environment,
        folder=str(plan.folder),
        log=str(run.log),
        cpus=list(group.cpus[rank % len(group.cpus)]) if group.cpus else [],
    )
