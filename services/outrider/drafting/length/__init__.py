"""Stop rules: when a model drafter should pause because its next guess is too unsure. One rule a file; `registry` names them."""
