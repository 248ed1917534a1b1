# Prints the Makefile's targets: "##@ Title" opens a group, "target: ... ## text" is a line of it.
BEGIN { print "make TARGET, where TARGET is one of" }
/^##@ / { printf "\n%s\n", substr($0, 5); next }
match($0, /^[a-z-]+:.*## /) { target = $0; sub(/:.*/, "", target); text = $0; sub(/^[^#]*## /, "", text); printf "  %-12s%s\n", target, text }
