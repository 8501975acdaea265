package main

// This file tests `prefetchd fabric` and its status.

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/fabric/device"
	"tensorcast/fabric/kernel"
	"tensorcast/internal/cli"
	"tensorcast/internal/testenv"
)

// fabric runs the command line in this process.
func fabric(ctx context.Context, args ...string) (stdout, stderr string, code int) {
	var out, errs bytes.Buffer
	code = cli.Run(ctx, command(func() {}), append([]string{"fabric"}, args...), &out, &errs)
	return out.String(), errs.String(), code
}

// TestFabric runs a device, and asks for its status in each format.
func TestFabric(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	socket, report := filepath.Join(dir, "s"), filepath.Join(dir, "report.csv")
	if _, errs, code := fabric(t.Context(), "status", "--socket", socket); code != cli.Failure ||
		strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "no device") {
		t.Errorf("no device: %q, %d", errs, code)
	}
	if _, errs, code := fabric(t.Context(), "--socket", socket, "--pool", "1"); code != cli.BadUsage {
		t.Errorf("a pool of a byte: %q, %d", errs, code)
	}
	ctx, cancel := context.WithCancel(t.Context())
	type result struct {
		stderr string
		code   int
	}
	done := make(chan result, 1)
	go func() {
		_, errs, code := fabric(ctx, "--socket", socket, "--pool", "1MiB", "--workers", "3", "--report", report)
		done <- result{errs, code}
	}()
	testenv.WaitFor(t, "the device", func() bool { _, err := device.Ask(t.Context(), socket); return err == nil })
	out, errs, code := fabric(t.Context(), "status", "--json", "--socket", socket)
	var s device.Status
	if err := json.Unmarshal([]byte(out), &s); err != nil || code != 0 || s.PoolTotal != 1<<20 ||
		s.Workers != 3 || s.Kernels != kernel.Best().String() || s.Jobs != 0 {
		t.Errorf("%s%s%d, %v", out, errs, code, err)
	}
	if out, _, code := fabric(t.Context(), "status", "--socket", socket); code != 0 ||
		!strings.Contains(out, "1.0 MiB in use, 1 free extents") ||
		!strings.Contains(out, "3 workers, "+s.Kernels+" kernels") {
		t.Errorf("%s%d", out, code)
	}
	if out, _, code := fabric(t.Context(), "status", "--metrics", "--socket", socket); code != 0 ||
		!strings.Contains(out, "\ntensorcast_fabric_workers 3\n") {
		t.Errorf("%s%d", out, code)
	}
	csv, _, code := fabric(t.Context(), "status", "--csv", "--socket", socket)
	if code != 0 || strings.Count(csv, "\n") != 2 || !strings.HasPrefix(csv, "running_seconds,") {
		t.Errorf("%s%d", csv, code)
	}
	_, errs, code = fabric(t.Context(), "status", "--csv", "--json", "--socket", socket)
	if code != cli.BadUsage || !strings.Contains(errs, "one of") {
		t.Errorf("two formats: %q, %d", errs, code)
	}
	if _, errs, code := fabric(t.Context(), "--socket", socket); code != cli.Failure ||
		!strings.Contains(errs, "running there already") {
		t.Errorf("a second one: %q, %d", errs, code)
	}
	cancel()
	if r := <-done; r.code != 0 {
		t.Errorf("%q, %d", r.stderr, r.code)
	}
	names, _, _ := strings.Cut(csv, "\n")
	if b, err := os.ReadFile(report); err != nil || !strings.HasPrefix(string(b), names+"\n") {
		t.Errorf("the report is %q (%v), want the columns %q", b, err, names)
	}
}
