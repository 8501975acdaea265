package main

// This file is `prefetchd exporter`. It serves the metrics of all prefetchds of this machine over HTTP.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"tensorcast/internal/cli"
	"tensorcast/prefetch/monitor"
)

// exporterAddress is where the exporter listens by default: where only this machine can reach it.
const exporterAddress = "localhost:9977"

func newExporterCommand() *cobra.Command {
	var dir, address string
	cmd := &cobra.Command{
		Use:   "exporter",
		Short: "Serve the metrics of all prefetchds here to Prometheus",
		Long: `Serve the metrics of all prefetchds of this machine over HTTP, at /metrics. It runs until it is
interrupted. Prometheus cannot ask prefetchds itself, because they answer on Unix sockets. So
Prometheus asks the exporter, and each time the exporter asks all prefetchds. It sends nothing else to
them. It needs no capability, but must run as the user of the prefetchds, because only that user can
open their sockets.

By default only programs on this machine can reach it. It uses HTTP without a password and without
encryption. Whoever can reach the port can read which processes are helped, and how fast they are. So
open it to a network only where a firewall, or a NetworkPolicy of Kubernetes, says who may reach it.

The metrics are those of prefetchd status --metrics, and three about the machine. These say how many
prefetchds there are, how many processes wait for one, and whether all could be asked. In the project,
packaging/prometheus has rules for them, packaging/grafana a dashboard, and packaging/kubernetes a
DaemonSet.

Exit status: 0 when it was interrupted; 1 on failure; 2 for wrong usage.`,
		Example: `  sudo prefetchd exporter                                # until Ctrl-C
  sudo prefetchd exporter --listen 10.0.0.7:9977
  curl -s localhost:9977/metrics`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, _, err := net.SplitHostPort(address); err != nil {
				return cli.Usagef("--listen is %q, want an address and a port such as %s", address, exporterAddress)
			}
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			return serveMetrics(cmd.Context(), dir, address, log)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&address, "listen", exporterAddress, "`address` and port to listen on. \":9977\" is all addresses of this machine")
	f.StringVar(&dir, "run-dir", monitor.Dir, "`DIR` of the sockets of running prefetchds")
	return cmd
}

// serveMetrics serves until ctx is done.
func serveMetrics(ctx context.Context, dir, address string, log *slog.Logger) error {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	log.Info("serving metrics", "at", "http://"+l.Addr().String()+"/metrics")
	server := monitor.NewExporter(dir, log).NewHTTPServer()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve metrics: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		return server.Close()
	})
	return group.Wait()
}
