"""A bench worker's process without a model (`python -m fakes_worker START`): echoes prompts, refuses and dies on request.

START: "ready", "refuse" (says why it cannot start) or "die".
"""

from __future__ import annotations

import json
import sys


def serve(start: str) -> None:
    """Answer lines until there are no more, as the real workers do."""
    if start == "die":
        sys.exit(3)
    print(json.dumps({"error": "no such model"} if start == "refuse" else {"version": "1"}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request["prompt"] == [0]:
            sys.exit(4)
        if not request["prompt"]:
            print(json.dumps({"error": "ValueError: empty prompt"}), flush=True)
            continue
        reply = {"tokens": request["prompt"], "first_token_ms": 1.5, "total_ms": 3.0}
        print(json.dumps(reply | request.get("rounds", {})), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
