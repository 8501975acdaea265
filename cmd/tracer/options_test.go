package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// parse returns what the command line asks for, and the error of parsing it.
func parse(args ...string) (got options, err error) {
	root := newCommand(func(_ *cobra.Command, o options, _ []string) error {
		got = o
		return nil
	})
	root.SetArgs(args)
	err = root.Execute()
	return got, err
}

func TestUsageErrors(t *testing.T) {
	for line, says := range map[string]string{
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
		"--detail all -- true":                   "graph, op, op+io",
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
		"--rotate 1GiB --rotate 10x -- true":     "nor a duration",
		"--detail op+io --detail nothing -- tru": "graph, op, op+io",
	} {
		t.Run(line, func(t *testing.T) {
			_, err := parse(strings.Fields(line)...)
			if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, says)
			}
		})
	}
}

func TestUsage(t *testing.T) {
	for line, check := range map[string]func(options) bool{
		"-- true":                func(o options) bool { return o.out == "capture" && o.detail.String() == "op" && o.rotate == rotation{} },
		"true --pid 1":           func(o options) bool { return o.pid == 0 }, // flags behind the command are the command's
		"--detail op+io -- true": func(o options) bool { return o.detail.String() == "op+io" },
		"--rotate 1GiB -- true":  func(o options) bool { return o.rotate == rotation{bytes: 1 << 30} },
		"--rotate 10M -- true":   func(o options) bool { return o.rotate == rotation{bytes: 10e6} },
		"--rotate 10m --keep 2 -p 1": func(o options) bool {
			return o.rotate == rotation{every: 10 * time.Minute} && o.keep == 2 && o.pid == 1
		},
		"--csv -- true":               func(o options) bool { return o.out == "capture.csv" },
		"--csv --pid 1":               func(o options) bool { return o.out == toStdout },
		"--csv --pid 1 -o x.csv":      func(o options) bool { return o.out == "x.csv" },
		"--csv --pid 1 -o -":          func(o options) bool { return o.out == toStdout },
		"--preload --follow -- true":  func(o options) bool { return o.preload && o.follow },
		"--buffers --buffer 4 -- sh":  func(o options) bool { return o.buffers && o.ringKiB == 4 },
		"--csv --detail graph -- tru": func(o options) bool { return o.csv && o.detail.String() == "graph" },
	} {
		t.Run(line, func(t *testing.T) {
			o, err := parse(strings.Fields(line)...)
			if err != nil || !check(o) {
				t.Errorf("%+v, error %v", o, err)
			}
		})
	}
}

func TestCompletion(t *testing.T) {
	root := newCommand(nil)
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(io.Discard)
	root.SetArgs([]string{"__complete", "--detail", ""})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	if want := "graph\nop\nop+io\n"; !strings.HasPrefix(out.String(), want) {
		t.Errorf("completions %q, want %q", out.String(), want)
	}
}
