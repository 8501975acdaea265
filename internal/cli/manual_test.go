package cli

// This file tests the manual page.

import (
	"bytes"
	"errors"
	"os/exec"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// manual returns a command whose texts contain characters that mean something to roff.
func manual() *cobra.Command {
	run := func(*cobra.Command, []string) error { return errors.New("ran") }
	root := &cobra.Command{
		Use: "demo [flags] FILE", Short: "Show - what it's like", RunE: run, Args: cobra.ExactArgs(1),
		Long: "First line.\n.hidden is a file, `~` and ^ are not\n'quoted' C:\\n\n\n" +
			"  name   a * table\n  other  _its_ second line\n\nLast.",
		Example: "  demo --size 1 x\n  demo y",
	}
	var size int64
	SizeVar(root.Flags(), &size, "size", "how `much` it's")
	root.Flags().StringP("output", "o", "-", "to `FILE`")
	root.Flags().Bool("secret", false, "not for the page")
	root.Flags().Lookup("secret").Hidden = true
	sub := &cobra.Command{Use: "sub", Short: "Do less", RunE: run, Example: "  demo sub"}
	sub.Flags().Bool("deep", false, "deeply")
	root.AddCommand(sub, &cobra.Command{Use: "internal", Short: "Nobody calls this", RunE: run, Hidden: true})
	return root
}

func TestManual(t *testing.T) {
	var out, errs bytes.Buffer
	if code := Run(t.Context(), manual(), []string{"__man"}, &out, &errs); code != 0 || errs.String() != "" {
		t.Fatalf("exit %d, %s", code, errs.String())
	}
	page := out.String()
	if first, _, _ := strings.Cut(page, "\n"); !strings.HasPrefix(first, `.TH "DEMO" 1 "`) {
		t.Errorf("the page begins with %q, want .TH \"DEMO\" 1", first)
	}
	for _, want := range []string{
		".SH NAME\ndemo \\- Show \\- what it\\(aqs like\n",
		".SH SYNOPSIS\ndemo [flags] FILE\n",
		".SH DESCRIPTION\n.PP\nFirst line.\n\\&.hidden is a file, \\(ga\\(ti\\(ga and \\(ha are not\n" +
			"\\(aqquoted\\(aq C:\\(rsn\n.PP\n.nf\n  name   a * table\n  other  _its_ second line\n\n.fi\nLast.\n",
		".TP\n\\fB\\-o, \\-\\-output FILE\\fP\nto FILE (default \\(dq\\-\\(dq)\n",
		".TP\n\\fB\\-\\-size much\\fP\nhow much it\\(aqs\n",
		".TP\n\\fB\\-\\-version\\fP\n",
		".SH COMMANDS\n.SS demo sub [flags]\n.PP\nDo less.\n.TP\n\\fB\\-\\-deep\\fP\ndeeply\n",
		".PP\nExamples:\n.PP\n.nf\n  demo sub\n.fi\n",
		".SH EXAMPLES\n.PP\n.nf\n  demo \\-\\-size 1 x\n  demo y\n.fi\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, unwanted := range []string{"secret", "Nobody calls", "completion", "__man"} {
		if strings.Contains(page, unwanted) {
			t.Errorf("the page has %q, want it left out", unwanted)
		}
	}
	if t.Failed() {
		t.Log(page)
	}

	if groff, err := exec.LookPath("groff"); err == nil {
		cmd := exec.CommandContext(t.Context(), groff, "-K", "utf8", "-T", "utf8", "-man", "-ww", "-P", "-c")
		cmd.Stdin = strings.NewReader(page)
		var warnings bytes.Buffer
		cmd.Stderr = &warnings
		shown, err := cmd.Output()
		if err != nil || warnings.Len() > 0 || !strings.Contains(string(shown), "    name   a * table\n") ||
			!strings.Contains(string(shown), ".hidden is a file, `~` and ^") {
			t.Errorf("groff: %v, %s\n%s", err, warnings.String(), shown)
		}
	}
}

// Together with other arguments, __man is an ordinary argument.
func TestManualIsAnArgument(t *testing.T) {
	var out, errs bytes.Buffer
	code := Run(t.Context(), manual(), []string{"--", "__man"}, &out, &errs)
	if want := "demo: ran\n"; code != Failure || errs.String() != want {
		t.Errorf("exit %d, %q; want %d, %q", code, errs.String(), Failure, want)
	}
}

func TestPageOrigin(t *testing.T) {
	info := &debug.BuildInfo{Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.time", Value: "2026-01-02T03:04:05Z"},
	}}
	if date, source := pageOrigin(info); date != "2026-01-02" || source != "tensorcast 0123456789ab" {
		t.Errorf("pageOrigin = %q, %q; want 2026-01-02, tensorcast 0123456789ab", date, source)
	}
	if date, source := pageOrigin(&debug.BuildInfo{}); date != "" || source != "tensorcast" {
		t.Errorf("pageOrigin of an unstamped build = %q, %q; want \"\", tensorcast", date, source)
	}
}
