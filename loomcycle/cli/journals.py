"""Reads journals straight from the log, in order, up to its end or for ever, and prints them."""

from __future__ import annotations

import asyncio
import heapq
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from datetime import datetime
from typing import Any

import click
import msgspec

from events.commit import Commit, JournalError, Record
from events.log import EventStore, Message
from events.streams import RUNS
from events.subjects import slot
from events.vocabulary import is_public
from loomcycle.cli.access import journal_filter, open_log, tenant_of
from loomcycle.cli.errors import BadInvocation
from loomcycle.cli.transcript import one_line, printable
from loomcycle.config.loaded import LoadedConfig
from loomcycle.loading import opening, whole_commit
