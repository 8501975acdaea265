package main

// This file tests the command line.

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"tensorcast/internal/cli"
)

// parsed is the result of parsing a command line.
type parsed struct {
	options
	args           []string
	ran            bool // the command line was accepted
	code           int
	stdout, stderr string
}

func parse(t *testing.T, args ...string) (p parsed) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	root := newCommand(func(_ context.Context, o options, args []string) (int, error) {
		p.options, p.args, p.ran = o, args, true
		return 0, nil
	})
	p.code = cli.Run(t.Context(), root, args, &stdout, &stderr)
	p.stdout, p.stderr = stdout.String(), stderr.String()
	return p
}

func TestUsageErrors(t *testing.T) {
	for line, want := range map[string]string{
		"":                                       "tracer --pid N",
		"--pid 1 -- true":                        "not both",
		"--pid 12 34 56":                         "give one process: 12, or 34, or 56",
		"--pid -o dir":                           "is the program running?",
		"--pid 0":                                "not a process id",
		"--pid 99999999999999999999":             "not a process id",
		"--pid":                                  "needs an argument",
		"--nope -- true":                         "--nope",
		"--buffer 5 -- true":                     "power of two",
		"--buffer 2 -- true":                     "power of two",
		"--buffer 4194304 -- true":               "or less",
		"--detail all -- true":                   "graph, op or op+io",
		"--keep 3 -- true":                       "give --rotate",
		"--rotate 1MiB --keep -1 -- true":        "--keep -1",
		"--rotate 0 -- true":                     "1MiB",
		"--rotate 10k -- true":                   "1MiB",
		"--rotate 5ms -- true":                   "1s",
		"--rotate -1s -- true":                   "1s",
		"--rotate often -- true":                 "1GiB",
		"--rotate 99999999999999EB -- true":      "1GiB",
		"-o - -- true":                           "--csv",
		"-o - --pid 1":                           "--csv",
		"--output= -- true":                      "-o needs a name",
		"--csv -o - -- true":                     "standard output is the command's",
		"--csv --rotate 1GiB -- true":            "not with --csv",
		"--csv --follow -- true":                 "not with --follow",
		"--csv --buffers -- true":                "not with --buffers",
		"--as-root --pid 1":                      "not with --pid",
		"--preload --pid 1":                      "not with --pid",
		"--preload --detail op -- true":          "not with --detail",
		"--preload --buffers -- true":            "not with --detail, --buffers",
		"--preload --perf-events -- true":        "--perf-events",
		"--preload --hidden -- true":             "--hidden needs the kernel's probes",
		"--csv --hidden -- true":                 "not with --hidden",
		"--hidden --detail graph -- true":        "not with --detail graph",
		"--hidden --no-token-ids -- true":        "not with --no-token-ids",
		"--hidden=0 -- true":                     "1 for every token",
		"--hidden=-3 -- true":                    "1 for every token",
		"--hidden=often -- true":                 "want a whole number",
		"--hidden 4 -- true":                     "write --hidden=4",
		"--rotate 1GiB --rotate 10x -- true":     "nor a duration",
		"--detail op+io --detail nothing -- tru": "graph, op or op+io",
	} {
		t.Run(line, func(t *testing.T) {
			p := parse(t, strings.Fields(line)...)
			if p.ran || p.code != cli.BadUsage || p.stdout != "" || !strings.Contains(p.stderr, want) {
				t.Errorf("accepted: %v; exit %d, %q, want %d and %q", p.ran, p.code, p.stderr, cli.BadUsage, want)
			}
			if !strings.HasPrefix(p.stderr, "tracer: ") || !strings.HasSuffix(p.stderr, "\n") ||
				strings.Count(p.stderr, "\n") != 1 {
				t.Errorf("stderr %q, want one line of tracer", p.stderr)
			}
		})
	}
}

func TestUsage(t *testing.T) {
	for line, check := range map[string]func(parsed) bool{
		"-- true": func(p parsed) bool {
			return p.out == "tracer.capture" && p.detail == "op" && p.rotate == rotation{}
		},
		"-- true --pid 1": func(p parsed) bool {
			return p.pid == 0 && slices.Equal(p.args, []string{"true", "--pid", "1"})
		},
		// Flags after the command belong to the command.
		"true --pid 1 --version": func(p parsed) bool { return p.pid == 0 && len(p.args) == 4 },
		"--detail op+io -- true": func(p parsed) bool { return p.detail == "op+io" },
		"--rotate 1GiB -- true":  func(p parsed) bool { return p.rotate == rotation{bytes: 1 << 30} },
		"--rotate 10M -- true":   func(p parsed) bool { return p.rotate == rotation{bytes: 10e6} },
		"--rotate 10m --keep 2 -p 1": func(p parsed) bool {
			return p.rotate == rotation{every: 10 * time.Minute} && p.keep == 2 && p.pid == 1 && len(p.args) == 0
		},
		"--csv -- true":               func(p parsed) bool { return p.out == "capture.csv" && p.stdoutUsed() },
		"--csv --pid 1":               func(p parsed) bool { return p.out == toStdout && p.stdoutUsed() },
		"--csv --pid 1 -o x.csv":      func(p parsed) bool { return p.out == "x.csv" && !p.stdoutUsed() },
		"--csv --pid 1 -o -":          func(p parsed) bool { return p.out == toStdout && p.stdoutUsed() },
		"--preload --follow -- true":  func(p parsed) bool { return p.preload && p.follow },
		"--buffers --buffer 4 -- sh":  func(p parsed) bool { return p.buffers && p.ringKiB == 4 },
		"--csv --detail graph -- tru": func(p parsed) bool { return p.csv && p.detail == "graph" },
	} {
		t.Run(line, func(t *testing.T) {
			p := parse(t, strings.Fields(line)...)
			if !p.ran || p.code != cli.OK || p.stdout != "" || p.stderr != "" || !check(p) {
				t.Errorf("accepted: %v; exit %d, %q; options %+v, arguments %q",
					p.ran, p.code, p.stderr, p.options, p.args)
			}
		})
	}
}

// Each level of detail has a different level of the probes.
func TestDetailNames(t *testing.T) {
	seen := map[any]bool{}
	for _, name := range detailNames {
		level, ok := probeDetails[name]
		if !ok || seen[level] {
			t.Errorf("--detail %s: level %v, known: %v; want a known level of its own", name, level, ok)
		}
		seen[level] = true
	}
}

func TestCompletion(t *testing.T) {
	if got, want := parse(t, "__complete", "--detail", "").stdout, "graph\nop\nop+io\n"; !strings.HasPrefix(got, want) {
		t.Errorf("completions %q, want %q", got, want)
	}
}

func TestVersion(t *testing.T) {
	for _, args := range [][]string{{"--version"}, {"--help"}} { // they need no command
		p := parse(t, args...)
		if p.ran || p.code != cli.OK || p.stderr != "" || !strings.Contains(p.stdout, "tracer") {
			t.Errorf("%s: ran: %v; exit %d, %q, %q; want false, 0, the text", args, p.ran, p.code, p.stdout, p.stderr)
		}
		if args[0] == "--version" && !strings.HasPrefix(p.stdout, "tracer version ") {
			t.Errorf("--version printed %q, want tracer version", p.stdout)
		}
	}
}
