package main

// This file implements "lab roofline", which predicts what the device would do in hardware. See package roofline.

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"tensorcast/fabric/lab/roofline"
	"tensorcast/internal/chart"
	"tensorcast/internal/cli"
	"tensorcast/internal/outfile"
)

// The numbers are those of the models' cards and configurations: parameters, those that are active
// for a token, and layers. The embeddings, of which a token reads a row, are not subtracted; they
// are below 7 % together.
var rooflineModels = []roofline.Model{
	{Name: "Llama-3.1-8B", Weights: 8.03e9, Active: 8.03e9, Layers: 32, Trips: 4},
	{Name: "Qwen3-30B-A3B", Weights: 30.5e9, Active: 3.3e9, Layers: 48, Trips: 5}, // and the router
	{Name: "gpt-oss-120b", Weights: 116.8e9, Active: 5.1e9, Layers: 36, Trips: 5},
}

// rooflineForms are the forms in which weights are kept. A plane takes two bits for a weight, or 1.6
// in PT-5, and each 32 weights take a half (16 bits). zeros is the share of zeros that the emulator
// counted for fitted planes of weights drawn from a normal distribution (skip_rate of `prefetchd
// fabric status`).
func rooflineForms(zeros float64) []roofline.Form {
	form := func(name string, planes, bits float64) roofline.Form {
		return roofline.Form{Name: name, Planes: planes, BytesPerWeight: (planes*bits + 0.5) / 8, Zeros: zeros}
	}
	return []roofline.Form{form("fast, PT-5", 2, 1.6), form("balanced, PT-5", 3, 1.6)}
}

func rooflineCommand() *cobra.Command {
	var asJSON bool
	var figure string
	card := roofline.Device{Name: "card", Lanes: 16384, Clock: 1e9, Bandwidth: 273e9, Efficiency: 0.77,
		Memory: 64e9, Trip: 3 * time.Microsecond, Host: 10 * time.Microsecond}
	zeros := 0.438
	cmd := &cobra.Command{
		Use:   "roofline [flags]",
		Short: "Predict the tokens per second of a device in hardware",
		Long: `Roofline predicts how many tokens per second a device in hardware would generate, for three public models. The
assumptions are flags. A token takes the time to read its weights, or the time to compute with them, whichever
is longer. Two things come on top, in which the device is idle. Each product that waits for the one before costs
a trip, and each layer costs the host's part. In the column "two", two sequences at a time keep the device busy.
They share no reads. All of this is predicted, and nothing is measured. fabric/TFMBS_DEVICE_SPEC.md says which
figures are measured on the emulator, and which are assumed.

Exit codes: 0 predicted; 2 wrong usage.`,
		Example: `  lab roofline
  lab roofline --bandwidth 819 --lanes 32768 --json
  lab roofline --figure hardware.svg`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			card := card
			card.Bandwidth, card.Clock, card.Memory = card.Bandwidth*1e9, card.Clock*1e9, card.Memory*1e9
			type row struct {
				Model string `json:"model"`
				Form  string `json:"form"`
				roofline.Prediction
			}
			var rows []row
			for _, m := range rooflineModels {
				for _, f := range rooflineForms(zeros) {
					p, err := roofline.Predict(m, f, card)
					if err != nil {
						return cli.Usage(err)
					}
					rows = append(rows, row{m.Name, f.Name, p})
				}
			}
			if figure != "" {
				format := chart.FormatOf(figure)
				if !slices.Contains(chart.Formats, format) {
					return cli.Usagef("--figure %q: want a file whose name ends in %s", figure,
						cli.OneOf(chart.Formats))
				}
				f, err := rooflineFigure(card, rooflineForms(zeros))
				if err != nil {
					return err
				}
				if err := outfile.Write(figure, func(w io.Writer) error { return f.Write(w, format) }); err != nil {
					return err
				}
			}
			if asJSON {
				return cli.WriteJSON(cmd.OutOrStdout(), rows)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, strings.Join([]string{"model", "form", "bytes/token", "memory", "compute", "trips",
				"host", "bound", "tok/s", "idle", "two", "fits"}, "\t"))
			for _, r := range rows {
				ms := func(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d)/1e6) }
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.0f\t%.1f %%\t%.0f\t%s\n", r.Model, r.Form,
					humanize.IBytes(uint64(r.Bytes)), ms(r.Memory), ms(r.Compute), ms(r.Trips), ms(r.Host), r.Bound,
					r.PerSecond, 100*r.Idle, r.Two,
					map[bool]string{true: "yes", false: "no"}[r.Fits])
			}
			return w.Flush()
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	card.Bandwidth, card.Clock, card.Memory = card.Bandwidth/1e9, card.Clock/1e9, card.Memory/1e9
	f.Float64Var(&card.Lanes, "lanes", card.Lanes, "number of products of a trit and a byte that are computed at the same time")
	f.Float64Var(&card.Clock, "clock", card.Clock, "clock of the device in `GHz`")
	f.Float64Var(&card.Bandwidth, "bandwidth", card.Bandwidth, "bandwidth of the device's memory in `GB/s`")
	f.Float64Var(&card.Efficiency, "efficiency", card.Efficiency, "share of the bandwidth that is reached")
	f.Float64Var(&card.Memory, "memory", card.Memory, "memory of the device in `GB`")
	f.DurationVar(&card.Trip, "trip", card.Trip, "time from a submission to its completion, without the product itself")
	f.DurationVar(&card.Host, "host", card.Host, "time that the host takes for its part of a layer")
	f.Float64Var(&zeros, "zeros", zeros, "share of the trits that are 0")
	f.BoolVar(&asJSON, "json", false, "print the predictions as JSON")
	f.StringVar(&figure, "figure", "", "also draw tokens per second against the memory's bandwidth to this `file`")
	return cmd
}

// mostDrawn is up to which bandwidth of the device's memory the figure goes, in GB/s.
const mostDrawn = 1000

// rooflineFigure draws tokens per second against the bandwidth of the device's memory. Its other values are card's.
func rooflineFigure(card roofline.Device, forms []roofline.Form) (*chart.Figure, error) {
	f := &chart.Figure{To: mostDrawn, XLabel: "bandwidth of the device's memory (GB/s)", YLabel: "tokens per second"}
	for i := range forms {
		panel := chart.Panel{Title: forms[i].Name}
		for _, m := range rooflineModels {
			curve := chart.Curve{Name: m.Name}
			for at := 25.0; at <= mostDrawn; at += 25 {
				card.Bandwidth = at * 1e9
				p, err := roofline.Predict(m, forms[i], card)
				if err != nil {
					return nil, err
				}
				curve.Points = append(curve.Points, chart.Point{X: at, Y: p.PerSecond})
				f.High = max(f.High, 1.08*p.PerSecond)
			}
			panel.Curves = append(panel.Curves, curve)
		}
		f.Panels = append(f.Panels, panel)
	}
	return f, nil
}
