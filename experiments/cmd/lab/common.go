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
	"regexp"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/results"
	"tensorcast/internal/cli"
	"tensorcast/internal/outfile"
	"tensorcast/internal/proc"
)

// report is the result of an instrument. It can also be encoded as JSON.
type report interface {
	WriteText(io.Writer) error
	WriteMarkdown(io.Writer) error
}

// output says where a report is written and in which form.
type output struct {
	kind  results.Kind
	begun time.Time // when the flags were added, which is when the command was started
	// of is the document whose report is shown again; nil if the report is a new one.
	of *results.Document

	json     bool
	save     string // file
	markdown bool
	quiet    bool
}

// add adds the flags of an instrument. what describes the contents of the JSON, table what is printed otherwise.
func (o *output) add(f *pflag.FlagSet, kind results.Kind, what, table string) {
	o.kind, o.begun = kind, time.Now()
	f.BoolVar(&o.json, "json", false, fmt.Sprintf("print %s as JSON instead of the %s", what, table))
	f.StringVar(&o.save, "save", "", fmt.Sprintf("also write %s to this `file`, as a document that lab results reads",
		what))
	f.BoolVar(&o.markdown, "markdown", false, fmt.Sprintf("print the %s as Markdown", table))
	f.BoolVarP(&o.quiet, "quiet", "q", false, "show no progress")
}

// print writes the report as the flags say. If it cannot be saved it is printed nevertheless,
// because measuring again would take long.
func (o *output) print(w io.Writer, r report) (err error) {
	if o.save != "" {
		saved := o.saveDocument(r)
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

// saveDocument writes the document of a report.
func (o *output) saveDocument(r report) (err error) {
	var d *results.Document
	if o.of != nil {
		d, err = o.of.Replace(r)
	} else {
		d, err = results.New(o.kind, r, commandLine(os.Args), o.begun)
	}
	if err != nil {
		return err
	}
	return outfile.Write(o.save, d.Write)
}

// plainWord needs no quotes in a shell.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:=,@%+-]+$`)

// commandLine writes arguments in the shell's syntax, with quotes only where they are needed.
func commandLine(args []string) string {
	words := make([]string, len(args))
	for i, arg := range args {
		if words[i] = arg; !plainWord.MatchString(arg) {
			words[i] = proc.Quote(arg)
		}
	}
	return strings.Join(words, " ")
}

// addDriver adds the flags for the driver llamarun.
func addDriver(f *pflag.FlagSet, o *llama.Options, tokensText string) {
	f.IntVarP(&o.Tokens, "tokens", "n", 32, tokensText)
	f.IntVarP(&o.Threads, "threads", "t", 2, "compute in `N` threads of the target")
	f.StringVarP(&o.Prompt, "prompt", "p", "The page cache", "the `text` of the prompt")
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
