// Command serverload shows what clients of a llama-server notice of a tracer that comes and goes. See package serverload.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"tensorcast/experiments/serverload"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var cfg serverload.Config
	var asJSON bool
	usage := true // until the flags are accepted, errors are the user's
	cmd := &cobra.Command{
		Use:   "serverload [flags] -- llama-server -m model.gguf [flag...]",
		Short: "Show what a llama-server's clients notice of a tracer that comes and goes",
		Long: `Serverload starts a llama-server and keeps all of its slots busy with completions at temperature 0, while an observer attaches to it
and detaches from it over and over; and the same without. It compares tokens and latencies.

The command after -- is given --host, --port and --parallel. Needs root for tracer.

Exit codes: 0 the clients' tokens are the same, none is missing and the server ends as it should; 1 not so, or not measured; 2 wrong usage.`,
		Example: `  sudo serverload --clients 4 -- llama-server -m model.gguf --no-repack -t 2 -c 8192
  sudo serverload --observer 'tracer --pid {pid} --detail graph -o /tmp/capture' -- llama-server -m model.gguf -c 8192`,
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg.Server = args
			if err := complete(&cfg); err != nil {
				return err
			}
			usage = false
			return measure(cmd.Context(), cfg, asJSON, stdout, stderr)
		},
	}
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	f := cmd.Flags()
	f.StringVar(&cfg.Observer, "observer", "", "a shell command that observes until SIGINT; {pid} is the server's process id (default: tracer)")
	f.IntVar(&cfg.Clients, "clients", 4, "clients at a time, and slots")
	f.IntVar(&cfg.Requests, "requests", 5, "requests of each client in a phase")
	f.IntVarP(&cfg.Tokens, "tokens", "n", 64, "tokens of an answer")
	f.IntVar(&cfg.Rounds, "rounds", 2, "rounds of plain, observed, observed, plain")
	f.DurationVar(&cfg.On, "on", time.Second, "how long the observer stays")
	f.DurationVar(&cfg.Off, "off", 500*time.Millisecond, "how long it stays away")
	f.BoolVar(&asJSON, "json", false, "print the result as JSON")
	f.SetInterspersed(false)

	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(stderr, "serverload:", err)
		if usage {
			return 2
		}
		return 1
	}
	return 0
}

// complete checks what the flags say.
func complete(cfg *serverload.Config) error {
	if len(cfg.Server) == 0 {
		return errors.New("no server: give -- llama-server -m model.gguf")
	}
	for _, n := range []struct {
		flag  string
		value int
	}{{"clients", cfg.Clients}, {"requests", cfg.Requests}, {"tokens", cfg.Tokens}, {"rounds", cfg.Rounds}} {
		if n.value < 1 {
			return fmt.Errorf("--%s %d: want 1 or more", n.flag, n.value)
		}
	}
	if cfg.On <= 0 || cfg.Off < 0 {
		return fmt.Errorf("--on %v --off %v: want some time on, and no less than none off", cfg.On, cfg.Off)
	}
	return nil
}

func measure(ctx context.Context, cfg serverload.Config, asJSON bool, stdout, stderr io.Writer) error {
	if cfg.Observer == "" {
		tracer := "tracer"
		if self, err := os.Executable(); err == nil {
			if path, err := exec.LookPath(filepath.Join(filepath.Dir(self), "tracer")); err == nil {
				tracer = path
			}
		}
		dir, err := os.MkdirTemp("", "serverload")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }() // nothing depends on it any more
		cfg.Observer = fmt.Sprintf("'%s' --pid {pid} -o '%s'", strings.ReplaceAll(tracer, "'", `'\''`), filepath.Join(dir, "capture"))
	}
	if file, ok := stderr.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		bar := progressbar.NewOptions(1, progressbar.OptionSetWriter(stderr), progressbar.OptionSetDescription("answers"), progressbar.OptionShowCount(),
			progressbar.OptionClearOnFinish(), progressbar.OptionSetElapsedTime(true))
		defer func() { _ = bar.Finish() }() // a terminal that is gone is not the measurement's failure
		cfg.Progress = func(done, total int) {
			bar.ChangeMax(total)
			_ = bar.Set(done)
		}
	}
	report, err := serverload.Measure(ctx, cfg)
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("stopped: %w", context.Cause(ctx))
		}
		return err
	}
	if asJSON {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", " ")
		err = enc.Encode(report)
	} else {
		err = report.WriteText(stdout)
	}
	if disturbed := report.Disturbed(); disturbed != "" {
		err = errors.Join(err, errors.New(disturbed))
	}
	return err
}
