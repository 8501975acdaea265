package main

// This file tests the subcommand report.

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/event"
	"tensorcast/internal/cli"
	"tensorcast/trace/tables"
)

// The page of a planted capture has its tensors, its doubts, and what was not recorded.
func TestReport(t *testing.T) {
	capture, out := plant(t, tables.Meta{Detail: tables.DetailOp, Counters: event.Counters{OpsLost: 2}}, true, whole,
		whole, whole), t.TempDir()
	code, stdout, stderr := execute(t, "report", "-c", capture, "-o", out)
	path := filepath.Join(out, pageFile)
	page, err := os.ReadFile(path)
	if code != cli.OK || err != nil || !strings.HasSuffix(stdout, "wrote "+path+"\n") ||
		!strings.Contains(stderr, "2 events lost") {
		t.Fatalf("exit %d, %v, want 0, a page and a warning: %s%s", code, err, stdout, stderr)
	}
	for _, want := range []string{
		"<title>planted.gguf</title>", "blk.0.ffn_down.weight", "2 events lost", "tracer --detail op+io", `"detail"`,
	} {
		if !bytes.Contains(page, []byte(want)) {
			t.Errorf("the page lacks %q", want)
		}
	}
	code, stdout, _ = execute(t, "report", "-c", capture, "-o", out, "--json")
	var got struct {
		Notes, Files []string
	}
	if err := json.Unmarshal([]byte(stdout), &got); code != cli.OK || err != nil || len(got.Notes) < 2 ||
		len(got.Files) != 1 || got.Files[0] != path {
		t.Errorf("exit %d, %v, want 0 with notes and the file: %s", code, err, stdout)
	}
	if code, _, stderr = execute(t, "report", "-c", capture, "-o", out, "--top", "3"); code != cli.BadUsage ||
		!strings.Contains(stderr, "--top") {
		t.Errorf("exit %d, stderr %q, want %d and the flag", code, stderr, cli.BadUsage)
	}
}
