package main

// This file has what several instruments need: how a report is printed, flags of the target, other commands of the project.

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/pflag"

	"tensorcast/experiments/llama"
	"tensorcast/internal/cli"
	"tensorcast/internal/outfile"
)

// report is what an instrument prints; it is encoded as JSON as it is.
type report interface {
	WriteText(io.Writer) error
	WriteMarkdown(io.Writer) error
}

// output is where a report goes, and in which form.
type output struct {
	json     string
	markdown bool
	quiet    bool
}

// add adds the flags. what is what the JSON holds; table is what is printed else.
func (o *output) add(f *pflag.FlagSet, what, table string) {
	f.StringVar(&o.json, "json", "", fmt.Sprintf("write %s to this `file` as JSON; - is standard output, instead of the %s", what, table))
	f.BoolVar(&o.markdown, "markdown", false, fmt.Sprintf("print the %s as Markdown", table))
	f.BoolVarP(&o.quiet, "quiet", "q", false, "show no progress")
}

// print prints and writes a report.
func (o *output) print(w io.Writer, r report) error {
	if o.json == "-" {
		return cli.WriteJSON(w, r)
	}
	if o.json != "" {
		if err := outfile.Write(o.json, func(w io.Writer) error { return cli.WriteJSON(w, r) }); err != nil {
			return err
		}
	}
	if o.markdown {
		return r.WriteMarkdown(w)
	}
	return r.WriteText(w)
}

// addDriver adds the flags for llamarun.
func addDriver(f *pflag.FlagSet, o *llama.Options, tokensText string) {
	f.IntVarP(&o.Tokens, "tokens", "n", 32, tokensText)
	f.IntVarP(&o.Threads, "threads", "t", 2, "threads of the target")
	f.StringVarP(&o.Prompt, "prompt", "p", "The page cache", "the prompt")
}

// bound is the least value of a flag that is a number.
type bound struct {
	flag         string
	value, least int
}

// check returns an error for the first value that is too small.
func check(bounds ...bound) error {
	for _, b := range bounds {
		if b.value < b.least {
			return fmt.Errorf("--%s %d: want %d or more", b.flag, b.value, b.least)
		}
	}
	return nil
}

// needRoot refuses to go on without root, which the instrument needs for what why says.
func needRoot(why string) error {
	if os.Geteuid() != 0 {
		return errors.New("this needs root, " + why + ": use sudo")
	}
	return nil
}

// beside is the path of another command of the project: the one beside this program, else its name, for PATH.
func beside(name string) string {
	if self, err := os.Executable(); err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(self), name)); err == nil {
			return path
		}
	}
	return name
}
