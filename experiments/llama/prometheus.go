package llama

// This file finds Prometheus, by which tests check rules and scrape metrics. Debian's package would start a server when
// it is installed, so it is only unpacked.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Prometheus returns the directory of the programs prometheus and promtool: where they are installed, or else where
// Debian's package was unpacked. The cache and the errors are those of [Install].
func Prometheus(ctx context.Context) (dir string, err error) {
	tool, missing := exec.LookPath("promtool")
	server, missingServer := exec.LookPath("prometheus")
	if errors.Join(missing, missingServer) == nil && filepath.Dir(tool) == filepath.Dir(server) {
		return filepath.Dir(tool), nil
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	root := filepath.Join(cache, "prometheus-debian")
	err = makeDir(ctx, root, func(tmp string) error {
		download := func() error { return runIn(ctx, tmp, "apt-get", "download", "prometheus") }
		if err := download(); err != nil {
			// The lists of packages are missing, or old. Only root can fetch new ones.
			if os.Geteuid() != 0 || runIn(ctx, tmp, "apt-get", "update") != nil {
				return err
			}
			if err := download(); err != nil {
				return err
			}
		}
		found, err := filepath.Glob(filepath.Join(tmp, "prometheus_*.deb"))
		if err != nil || len(found) != 1 {
			return fmt.Errorf("apt-get download prometheus left %d packages, not one", len(found))
		}
		return runIn(ctx, tmp, "dpkg-deb", "--extract", found[0], tmp)
	})
	return filepath.Join(root, "usr", "bin"), err
}

// runIn runs a command in a directory. If it fails the error has the end of what it printed. It wraps [ErrIntegrity] if
// pip says that a package has another hash, and otherwise [ErrUnavailable].
func runIn(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.WaitDelay = dir, 2*time.Second
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", name, context.Cause(ctx))
	}
	reason := ErrUnavailable
	if bytes.Contains(out, []byte("DO NOT MATCH THE HASHES")) {
		reason = ErrIntegrity
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return fmt.Errorf("%w: %s %s: %w: %s", reason, name, strings.Join(args, " "), err, lines[len(lines)-1])
}
