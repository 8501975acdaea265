package main

// This file is `prefetchd fabric`, which runs the emulated accelerator as a process, and `prefetchd
// fabric status`.

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"tensorcast/fabric/device"
	"tensorcast/internal/cli"
	"tensorcast/internal/outfile"
)

func newFabricCommand() *cobra.Command {
	var socket, report string
	var hold holdOptions
	var pool, host, arena int64 = 4 << 30, 4 << 30, 4 << 30
	o := device.Options{Clients: 64}
	cmd := &cobra.Command{
		Use:   "fabric",
		Short: "Run the emulated ternary device",
		Long: `Run the emulated ternary device. It multiplies with ternary weights, whose digits are -1, 0 or 1. A
plane has one such digit of every weight of a matrix. Programs of this user reach the device by
libtfmbs_device.so (include/tfmbs_host.h). They share memory with it, hand it weights once, and let it
multiply.

With --hold the device reads weights of a model itself. Programs that have the model's file mapped find
these weights in the device if TFMBS_HANDOVER=1 is set. The device runs until it is interrupted, or with
--idle until nobody has used it for that time. Only one device serves a socket.

Exit status: 0 it was interrupted, or nobody used it any more; 1 failed; 2 for wrong usage.`,
		Example: `  prefetchd fabric --pool 2GiB --idle 60s
  prefetchd fabric --hold model.gguf --profile fast --room 400MB --idle 60s
  prefetchd fabric status --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, b := range []struct {
				name string
				from int64
				to   *int
			}{{"--pool", pool, &o.PoolBytes}, {"--host", host, &o.HostBytes}, {"--arena", arena, &o.ArenaBytes}} {
				if b.from < 1<<16 || b.from > 1<<45 {
					return cli.Usagef("%s %s: between 64 KiB and 32 TiB",
						b.name, humanize.IBytes(uint64(max(0, b.from))))
				}
				*b.to = int(b.from)
			}
			if o.Clients < 1 || o.Workers < 0 || o.Idle < 0 {
				return cli.Usagef("--clients %d, --workers %d, --idle %v: below what makes sense",
					o.Clients, o.Workers, o.Idle)
			}
			o.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			if err := hold.open(); err != nil {
				return err
			}
			defer hold.close()
			if o.Workers == 0 {
				o.Workers = runtime.GOMAXPROCS(0)
			}
			// Two more threads than those that multiply, for the goroutines of clients, which keep
			// a thread while they sleep.
			runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 2)
			d, err := device.Listen(socket, o)
			if err != nil {
				return err
			}
			waitLoaded := hold.startLoading(cmd.Context(), d)
			if _, err = fmt.Fprintf(cmd.ErrOrStderr(), "serving %s\n", socket); err == nil {
				err = d.Serve(cmd.Context())
			}
			err = errors.Join(err, waitLoaded())
			if report != "" {
				s := d.Status()
				err = errors.Join(err, outfile.Write(report, s.WriteCSV))
			}
			return errors.Join(err, d.Close())
		},
	}
	cmd.PersistentFlags().StringVar(&socket, "socket", device.SocketPath(),
		"`PATH` of the socket where programs find the device")
	f := cmd.Flags()
	cli.SizeVar(f, &pool, "pool", "`SIZE` of the device's own memory, which holds planes of weights")
	cli.SizeVar(f, &host, "host", "`SIZE` of the machine's memory for planes that no longer fit in the pool")
	cli.SizeVar(f, &arena, "arena", "largest `SIZE` of memory that a program may share with the device")
	f.IntVar(&o.Clients, "clients", o.Clients, "at most `N` programs use the device at a time")
	f.IntVar(&o.Workers, "workers", 0, "multiply in `N` threads (default: one for each processor)")
	f.StringVar(&report, "report", "", "write the counters to `FILE` at the end, as CSV")
	hold.addFlags(cmd)
	f.DurationVar(&o.Idle, "idle", 0, "end when no program has used the device for this `TIME`, such as 60s (default: never)")

	var asJSON, metrics, csv bool
	status := &cobra.Command{
		Use:   "status",
		Short: "Print the counters of the running device",
		Long: `Print the counters of the device that runs at the socket: what it holds, what it computed, and how
long it and the programs took. The device goes on.

Exit status: 0 done; 1 if no device answers; 2 for wrong usage.`,
		Example: `  prefetchd fabric status
  prefetchd fabric status --metrics`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON && metrics || asJSON && csv || metrics && csv {
				return cli.Usagef("give one of --json, --metrics and --csv")
			}
			s, err := device.Ask(cmd.Context(), socket)
			switch {
			case err != nil:
				return err
			case asJSON:
				return cli.WriteJSON(cmd.OutOrStdout(), s)
			case metrics:
				return s.WriteMetrics(cmd.OutOrStdout())
			case csv:
				return s.WriteCSV(cmd.OutOrStdout())
			}
			return printStatus(cmd.OutOrStdout(), &s)
		},
	}
	status.Flags().BoolVar(&asJSON, "json", false, "print the counters as JSON")
	status.Flags().BoolVar(&metrics, "metrics", false, "print the counters in the text format of Prometheus")
	status.Flags().BoolVar(&csv, "csv", false, "print the counters as CSV: a line of names, and a line of values")
	cmd.AddCommand(status)
	return cmd
}

// printStatus prints the counters for people.
func printStatus(w io.Writer, s *device.Status) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	size := func(n int) string { return humanize.IBytes(uint64(n)) }
	fmt.Fprintf(t, "running\t%v, %d workers, %s kernels\n",
		time.Duration(s.Seconds*1e9).Round(time.Second), s.Workers, s.Kernels)
	fmt.Fprintf(t, "clients\t%d now, %d ever\n", s.Clients, s.ClientsEver)
	fmt.Fprintf(t, "jobs\t%d, of these %d failed, %d cancelled\n", s.Jobs, s.Failed, s.Cancelled)
	fmt.Fprintf(t, "products\t%d in %v, %d operations (%.1f %% with a trit of 0), %s of weights read\n",
		s.Products, time.Duration(s.ProductNanos).Round(time.Microsecond),
		s.Ops, 100*s.SkipRate, humanize.IBytes(s.WeightBytes))
	fmt.Fprintf(t, "tokens\t%d, %.1f/s, %s of weights each; %.1f s here, %.1f s of programs between products\n",
		s.Tokens, s.TokensPerSecond, humanize.IBytes(uint64(s.BytesPerToken)), s.FabricTime, s.HostTime)
	fmt.Fprintf(t, "cycles\t%d of %d lanes, if a trit of 0 takes none; "+
		"energy at published costs, not measured: %.3g J\n", s.Cycles, s.Lanes, s.Energy)
	fmt.Fprintf(t, "pool\t%s of %s in use, %d free extents, the largest %s\n",
		size(s.PoolUsed), size(s.PoolTotal), s.PoolExtents, size(s.PoolLargest))
	fmt.Fprintf(t, "weights\t%d, %d uploads of what was there, %s evicted to the host\n",
		s.Weights, s.Shared, size(s.HostBytes))
	fmt.Fprintf(t, "residency\t%d planes found, %d brought back, %d more ahead of their use, %d evictions, "+
		"%s moved, %d products with fewer planes\n",
		s.Hits, s.Misses, s.Ahead, s.Evictions, humanize.IBytes(s.Moved), s.Degraded)
	if h := s.Holding; h != nil {
		more := ""
		if h.Loading {
			more = ", more is being read"
		}
		if h.Below > 0 {
			more += fmt.Sprintf("; memory is short: %d with an error of up to %.1f dB instead of the profile's",
				h.Below, h.Decibels)
		}
		fmt.Fprintf(t, "held\t%d tensors, %s of their file in %s of memory, room for %s; "+
			"%d left to the CPU, %d of them let go%s; %d pages read from disk\n",
			h.Tensors, humanize.IBytes(h.Bytes), humanize.IBytes(h.Planes), humanize.IBytes(h.Room),
			h.Left, h.GivenUp, more, h.Faults)
	}
	return t.Flush()
}
