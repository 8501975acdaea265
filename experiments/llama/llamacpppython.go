package llama

// This file installs llama-cpp-python, which tests trace and help. Python's index has its source alone, so that a
// llama.cpp is built, with the instructions of this machine's processor, as users have it.

import (
	"context"
	_ "embed"
	"fmt"
	"os/exec"
)

// llamaCppPython is the source. Its hash changes with the version, and so does the name in the cache.
const llamaCppPython = "llama-cpp-python==0.3.36 " +
	"--hash=sha256:832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e\n"

// llamaCppPythonNeeds are the packages that build it, and those that it and its server import, for Python 3.11 to 3.13
// on amd64.
//
//go:embed llamacpppython.txt
var llamaCppPythonNeeds string

// LlamaCppPython returns a Python interpreter that can import llama_cpp and llama_cpp.server. The first time it takes
// minutes, because a llama.cpp is built, which wants both cmake and g++; meanwhile nothing else can be installed in the
// cache. The errors are those of [Install]; without these programs the error wraps [ErrUnavailable].
func LlamaCppPython(ctx context.Context) (python string, err error) {
	for _, program := range []string{"cmake", "g++"} {
		if _, err := exec.LookPath(program); err != nil {
			return "", fmt.Errorf("%w: llama-cpp-python is built from source, which needs %s (on Debian or Ubuntu: "+
				"apt-get install cmake g++)", ErrUnavailable, program)
		}
	}
	if err := checkPython(ctx); err != nil {
		return "", err
	}
	return pythonWith(ctx, "llama-cpp-python-0.3.36", llamaCppPythonNeeds, llamaCppPython)
}
