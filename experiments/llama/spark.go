package llama

// This file installs Apache Spark for Python, in which tests read data sets. It takes 320 MB of Python's package index,
// and a Java, which is not installed here.

import (
	"context"
	"fmt"
	"os/exec"
)

// spark are the packages, with the hashes of their files.
const spark = `pyspark==3.5.9 --hash=sha256:ea27adc39ddac9413b8951e45aa748cbed6c785971b81386efc41938f6243d93
py4j==0.10.9.7 --hash=sha256:85defdfd2b2376eb3abf5ca6474b51ab7e0de341c75a02f46dc9b5976f5a5c1b
`

// Spark returns a Python interpreter that can import pyspark. It is one of a virtual environment. The cache and the
// errors are those of [Install]; without a Java the error wraps [ErrUnavailable].
func Spark(ctx context.Context) (python string, err error) {
	if _, err := exec.LookPath("java"); err != nil {
		return "", fmt.Errorf("%w: Spark needs a Java (on Debian or Ubuntu: apt-get install default-jre-headless)",
			ErrUnavailable)
	}
	return pythonWith(ctx, "spark-3.5.9", spark)
}
