package main

// This file makes a llama-server a target: it is started together with "lab ask", which asks it for
// tokens and ends it when it has them.

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llamaserver"
	"tensorcast/internal/cli"
)

// asking makes the command line of a llama-server and of this program, which asks it.
type asking struct {
	self   string
	driver llama.Options
	models []string // the names of a router's models, if it is one
}

func newAsking(driver llama.Options, models ...string) (asking, error) {
	self, err := os.Executable()
	if err != nil {
		return asking{}, fmt.Errorf("find this program: %w", err)
	}
	return asking{self, driver, models}, nil
}

// command returns a command line that prints what the asking program prints. Its process is the
// server's.
func (a asking) command(program string, flags ...string) []string {
	port, err := llamaserver.FreePort()
	if err != nil {
		port = 0 // nobody answers there, and the run says that it took too long
	}
	address := fmt.Sprintf("http://127.0.0.1:%d", port)
	args := []string{
		"sh", "-c", `self=$1 address=$2 prompt=$3 tokens=$4 models=$5; shift 5
"$self" ask "$address" -p "$prompt" -n "$tokens" --models "$models" & exec "$@" > /dev/null`,
		"sh", a.self, address, a.driver.Prompt, fmt.Sprint(a.driver.Tokens),
		strings.Join(a.models, ","), program,
	}
	args = append(args, flags...)
	return append(args, "--no-repack", "-np", "1", "-t", fmt.Sprint(a.driver.Threads), "-c", "512",
		"--host", "127.0.0.1", "--port", fmt.Sprint(port))
}

// askCommand is hidden: instruments run it beside a server.
func askCommand() *cobra.Command {
	q := llamaserver.Questions{}
	cmd := &cobra.Command{
		Use:   "ask http://HOST:PORT",
		Short: "Ask the llama-server that is this program's parent for tokens, then end it",
		Long: `Ask asks a llama-server for tokens, and prints them as llamarun --stream does. Then it ends its parent, which
is the server. Other commands of lab run it.

Exit codes: 0 all tokens were printed; 1 not all; 2 wrong usage.`,
		Example: `  sh -c 'lab ask http://127.0.0.1:8080 -n 8 & exec llama-server -m model.gguf > /dev/null'`,
		Args:    cobra.ExactArgs(1),
		Hidden:  true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := check(bound{"tokens", q.Tokens, 1}); err != nil {
				return cli.Usage(err)
			}
			q.Base = args[0]
			return askParent(cmd.Context(), q, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVarP(&q.Prompt, "prompt", "p", "The page cache", "the prompt")
	f.IntVarP(&q.Tokens, "tokens", "n", 18, "number of tokens to ask for, of all models together")
	f.StringSliceVar(&q.Models, "models", nil, "`names` of a router's models, with commas. All are asked at the same time")
	return cmd
}

// askParent runs beside a server: see asking.
func askParent(ctx context.Context, q llamaserver.Questions, w io.Writer) error {
	server := os.Getppid()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() { // the server may be killed
		for ctx.Err() == nil && os.Getppid() == server {
			time.Sleep(100 * time.Millisecond)
		}
		stop()
	}()
	if err := llamaserver.PrintAnswers(ctx, q, w); err != nil {
		return err
	}
	return syscall.Kill(server, syscall.SIGTERM)
}
