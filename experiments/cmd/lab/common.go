package main

// This file has what several instruments share: printing a report, flags of the target, finding the
// project's other commands.

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

// report is the result of an instrument. It can also be encoded as JSON.
type report interface {
	WriteText(io.Writer) error
	WriteMarkdown(io.Writer) error
}

// output says where a report is written and in which form.
type output struct {
	json     bool
	save     string // file
	markdown bool
	quiet    bool
}

// add adds the flags. what describes the contents of the JSON, table what is printed otherwise.
func (o *output) add(f *pflag.FlagSet, what, table string) {
	f.BoolVar(&o.json, "json", false, fmt.Sprintf("print %s as JSON instead of the %s", what, table))
	f.StringVar(&o.save, "save", "", fmt.Sprintf("also write %s to this `file` as JSON", what))
	f.BoolVar(&o.markdown, "markdown", false, fmt.Sprintf("print the %s as Markdown", table))
	f.BoolVarP(&o.quiet, "quiet", "q", false, "show no progress")
}

// print writes the report as the flags say. If it cannot be saved it is printed nevertheless,
// because measuring again would take long.
func (o *output) print(w io.Writer, r report) (err error) {
	if o.save != "" {
		saved := outfile.Write(o.save, func(w io.Writer) error { return cli.WriteJSON(w, r) })
		defer func() { err = errors.Join(saved, err) }()
	}
	switch {
	case o.json:
		return cli.WriteJSON(w, r)
	case o.markdown:
		return r.WriteMarkdown(w)
	}
	return r.WriteText(w)
}

// addDriver adds the flags for the driver llamarun.
func addDriver(f *pflag.FlagSet, o *llama.Options, tokensText string) {
	f.IntVarP(&o.Tokens, "tokens", "n", 32, tokensText)
	f.IntVarP(&o.Threads, "threads", "t", 2, "threads of the target")
	f.StringVarP(&o.Prompt, "prompt", "p", "The page cache", "the prompt")
}

// bound is the least allowed value of a numeric flag.
type bound struct {
	flag         string
	value, least int
}

// check returns an error for the first value below its bound.
func check(bounds ...bound) error {
	for _, b := range bounds {
		if b.value < b.least {
			return fmt.Errorf("--%s %d: want %d or more", b.flag, b.value, b.least)
		}
	}
	return nil
}

// needRoot returns an error unless this process is root; why says what root is needed for.
func needRoot(why string) error {
	if os.Geteuid() != 0 {
		return errors.New("this needs root, " + why + ": use sudo")
	}
	return nil
}

// siblingCommand returns the path of another command of the project: the file next to this program,
// otherwise the bare name, to be found in PATH.
func siblingCommand(name string) string {
	if self, err := os.Executable(); err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(self), name)); err == nil {
			return path
		}
	}
	return name
}
