"""What `outrider doctor` looks at: the machine, the models, the network. Each check returns findings; none prints."""
