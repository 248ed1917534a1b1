"""Where the served model's tokenizer is, and the proof that it is the target's.

Knows what a verifier says of its model: a folder, or a hub name whose tokenizer files are fetched once (never its weights). Must not know
how a tokenizer works: its vocabulary is compared by the hash that a drafter and a verifier compare too.
"""

from __future__ import annotations

from pathlib import Path

from outrider.engine.vocabulary import read_vocabulary
from outrider.errors import ModelRefused
from outrider.types.identity import ModelIdentity

TOKENIZER_FILES = [
    "tokenizer*",
    "*.model",
    "*.jinja",
    "config.json",
    "vocab*",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
]
_SHOWN_HASH_LEN = 12


def model_folder(identity: ModelIdentity) -> Path:
    """The folder the verifier loaded, or the hub's snapshot of its tokenizer; raises ModelRefused when neither is to be had here."""
    folder = Path(identity.model).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download  # only where a hub name is served
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        return Path(snapshot_download(identity.model, revision=identity.revision or None, allow_patterns=TOKENIZER_FILES))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        raise ModelRefused(
            f"the verifier serves {identity.model!r}, which is no folder here and not reachable on the hub ({error}); "
            "name its tokenizer's folder with --model-dir"
        ) from error


def check_vocabulary(folder: Path, identity: ModelIdentity) -> None:
    """Raise ModelRefused unless the folder's vocabulary is the target's; one without tokenizer.json cannot be compared."""
    try:
        vocabulary = read_vocabulary(folder)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ModelRefused(f"the vocabulary of the tokenizer in {folder} cannot be read: {error!r}") from error
    if vocabulary is not None and vocabulary.hash != identity.vocab_hash:
        ours, theirs = vocabulary.hash[:_SHOWN_HASH_LEN], identity.vocab_hash[:_SHOWN_HASH_LEN]
        raise ModelRefused(
            f"the tokenizer in {folder} has the vocabulary {ours}, the target {identity.model!r} of the verifier has {theirs}; "
            "point --model-dir at the target's own folder"
        )
