package llama

// This file installs Apache Spark for Python, in which tests read data sets. It takes 320 MB of Python's package index,
// and a Java, which is not installed here.

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	root := filepath.Join(cache, "spark-3.5.9")
	err = makeDir(ctx, root, func(tmp string) error {
		if err := runIn(ctx, tmp, "python3", "-m", "venv", tmp); err != nil {
			return fmt.Errorf("%w (on Debian or Ubuntu: apt-get install python3-venv)", err)
		}
		list := filepath.Join(tmp, "requirements.txt")
		if err := os.WriteFile(list, []byte(spark), 0o600); err != nil {
			return err
		}
		// Its programs name the directory in which they were installed, which gets another name now. The interpreter
		// does not.
		return runIn(ctx, tmp, filepath.Join(tmp, "bin", "python3"), "-m", "pip", "install", "--quiet",
			"--no-cache-dir", "--require-hashes", "--requirement", list)
	})
	return filepath.Join(root, "bin", "python3"), err
}
