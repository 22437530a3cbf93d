"""One port for everybody: frames go from circuit to circuit, unopened."""
