package main

// This file implements "lab serverload", which shows what clients of a llama-server notice when
// tracers attach and detach. See package serverload.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tensorcast/experiments/serverload"
	"tensorcast/internal/cli"
	"tensorcast/internal/cli/progress"
)

func serverloadCommand() *cobra.Command {
	var cfg serverload.Config
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "serverload [flags] -- llama-server -m model.gguf [flag...]",
		Short: "Show what a llama-server's clients notice of a tracer that comes and goes",
		Long: `Serverload shows what a llama-server's clients notice of a tracer that comes and goes. It starts a
llama-server, and keeps all of its slots busy with completions at temperature 0. In every other phase an
observer attaches to the server and detaches from it, over and over. Serverload compares the tokens and the
latencies of the phases.

It adds --host, --port and --parallel to the command after --. It needs root for tracer.

Exit codes: 0 the clients' tokens are the same, none is missing, and the server ends as it should; 1 not so,
or not measured; 2 wrong usage.`,
		Example: `  sudo lab serverload --clients 4 -- llama-server -m model.gguf --no-repack -t 2 -c 8192
  sudo lab serverload --observer 'tracer --pid {pid} --detail graph -o /tmp/capture' \
      -- llama-server -m model.gguf -c 8192`,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg.Server = args
			if err := completeServerload(&cfg); err != nil {
				return cli.Usage(err)
			}
			return measureServerload(cmd.Context(), cfg, asJSON, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Observer, "observer", "",
		"a shell `command` that observes until SIGINT. In it, {pid} is the server's process id (default: tracer)")
	f.IntVar(&cfg.Clients, "clients", 4, "clients at the same time, which is also the number of slots")
	f.IntVar(&cfg.Requests, "requests", 5, "requests of each client in each phase")
	f.IntVarP(&cfg.Tokens, "tokens", "n", 64, "tokens of each answer")
	f.IntVar(&cfg.Rounds, "rounds", 2, "rounds, each of the four phases plain, observed, observed, plain")
	f.DurationVar(&cfg.On, "on", time.Second, "how long the observer stays attached each time, such as 1s")
	f.DurationVar(&cfg.Off, "off", 500*time.Millisecond, "how long the observer stays away each time, such as 500ms")
	f.BoolVar(&asJSON, "json", false, "print the result as JSON")
	f.SetInterspersed(false)

	return cmd
}

// completeServerload checks the flags.
func completeServerload(cfg *serverload.Config) error {
	if len(cfg.Server) == 0 {
		return errors.New("no server: give -- llama-server -m model.gguf")
	}
	if err := check(bound{"clients", cfg.Clients, 1}, bound{"requests", cfg.Requests, 1},
		bound{"tokens", cfg.Tokens, 1}, bound{"rounds", cfg.Rounds, 1}); err != nil {
		return err
	}
	if cfg.On <= 0 || cfg.Off < 0 {
		return fmt.Errorf("--on %v --off %v: want some time on, and no less than none off", cfg.On, cfg.Off)
	}
	return nil
}

func measureServerload(ctx context.Context, cfg serverload.Config, asJSON bool, stdout, stderr io.Writer) error {
	if cfg.Observer == "" {
		dir, err := os.MkdirTemp("", "serverload")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }() // a directory left behind does no harm
		cfg.Observer = fmt.Sprintf("'%s' --pid {pid} -o '%s'",
			strings.ReplaceAll(siblingCommand("tracer"), "'", `'\''`), filepath.Join(dir, "capture"))
	}
	bar := progress.New(stderr, progress.Options{What: "answers"})
	defer bar.Close()
	cfg.Progress = func(done, total int) { bar.Update(int64(done), int64(total), "") }
	r, err := serverload.Measure(ctx, cfg)
	bar.Close()
	if r == nil {
		return err
	}
	if asJSON {
		err = errors.Join(err, cli.WriteJSON(stdout, r))
	} else {
		err = errors.Join(err, r.WriteText(stdout))
	}
	if disturbed := r.Disturbed(); disturbed != "" {
		err = errors.Join(err, errors.New(disturbed))
	}
	return err
}
