"""The operations of Context that a deployment's configuration and stores answer, together."""

from __future__ import annotations

from pathlib import Path

from loomcycle.config.loaded import LoadedConfig
from loomcycle.evaluations.store import Evaluations
from loomcycle.help.topics import read_topics
from loomcycle.tools.context import deployment, help, history, judgements
from loomcycle.tools.context.history import Transcripts
from loomcycle.tools.context.request import Operation


def operations(
    loaded: LoadedConfig, evaluations: Evaluations, transcripts: Transcripts
) -> dict[str, Operation]:
    """Raises OSError when the directory of help topics cannot be read."""
    root = loaded.environment.help_root
    topics = read_topics(Path(root) if root else None)
    return {
        **deployment.operations(loaded.config),
        **judgements.operations(evaluations),
        **history.operations(transcripts),
        **help.operations(topics),
    }
