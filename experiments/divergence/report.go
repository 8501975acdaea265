package divergence

// This file formats the results as tables.

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"tensorcast/internal/tabular"
)

// Report is the result of Compare.
type Report struct {
	Reference               string  `json:"reference"` // path
	ReferenceBytesPerWeight float64 `json:"reference_bytes_per_weight"`
	Llama                   string  `json:"llama"` // ggml's version and commit
	Threads                 int     `json:"threads"`
	Context                 int     `json:"context"` // tokens per chunk, of which the second half is scored
	Rows                    []Row   `json:"rows"`
	Interrupted             bool    `json:"interrupted,omitempty"` // some rows are missing
}

// Row compares a candidate with the reference on one text. Standard errors are those of the mean
// over chunks; they are 0 if there is only one chunk.
type Row struct {
	Candidate      string  `json:"candidate"`
	Text           string  `json:"text"` // base name of the file
	BytesPerWeight float64 `json:"bytes_per_weight"`
	Chunks         int     `json:"chunks"`
	Predictions    int     `json:"predictions"`

	KL      float64 `json:"kl"` // mean of KL(reference || candidate), nats
	KLError float64 `json:"kl_error"`
	KLP99   float64 `json:"kl_p99"` // 99th percentile of the divergence
	KLMax   float64 `json:"kl_max"`
	SameTop float64 `json:"same_top"` // share of predictions with the same most likely token

	ReferencePerplexity float64 `json:"reference_perplexity"`
	Perplexity          float64 `json:"perplexity"`
	Ratio               float64 `json:"ratio"` // candidate's perplexity divided by the reference's
	RatioError          float64 `json:"ratio_error"`
}

// columns are the columns of the table.
var columns = tabular.Left(
	"text", "model", "bytes/weight", "mean KL", "its error", "99 %", "max", "same top %", "perplexity",
	"reference's", "ratio", "its error",
)

func (r *Report) rows() [][]string {
	var rows [][]string
	for _, row := range r.Rows {
		klError, ratioError := fmt.Sprintf("%.2g", row.KLError), fmt.Sprintf("%.2g", row.RatioError)
		if row.Chunks < 2 {
			klError, ratioError = "-", "-"
		}
		rows = append(rows, []string{
			row.Text, row.Candidate, fmt.Sprintf("%.3f", row.BytesPerWeight),
			fmt.Sprintf("%.4g", row.KL), klError, fmt.Sprintf("%.3g", row.KLP99), fmt.Sprintf("%.3g", row.KLMax),
			fmt.Sprintf("%.2f", 100*row.SameTop),
			fmt.Sprintf("%.4f", row.Perplexity), fmt.Sprintf("%.4f", row.ReferencePerplexity),
			fmt.Sprintf("%.6f", row.Ratio), ratioError,
		})
	}
	return rows
}

// remarks are the notes that belong to the table.
func (r *Report) remarks() tabular.Lines {
	var texts []string
	for _, row := range r.Rows {
		text := fmt.Sprintf("%s: %d predictions in %d chunks of %d tokens", row.Text, row.Predictions, row.Chunks,
			r.Context)
		if !slices.Contains(texts, text) { // several rows have the same text
			texts = append(texts, text)
		}
	}
	var lines tabular.Lines
	if r.Interrupted {
		lines = append(lines, "INTERRUPTED: rows that were to follow are missing.")
	}
	return append(lines,
		fmt.Sprintf("reference: %s, %.3f bytes/weight; llama.cpp: %s, %d threads", r.Reference,
			r.ReferenceBytesPerWeight, r.Llama, r.Threads),
		strings.Join(texts, "; "),
		"KL: KL(reference || model) of next-token distributions, nats; errors are standard errors over chunks",
	)
}

// WriteText writes the report for a terminal.
func (r *Report) WriteText(w io.Writer) error { return r.document().WriteText(w) }

// WriteMarkdown writes the report for a document.
func (r *Report) WriteMarkdown(w io.Writer) error { return r.document().WriteMarkdown(w) }

func (r *Report) document() tabular.Document {
	return tabular.Document{&tabular.Table{Columns: columns, Rows: r.rows()}, r.remarks()}
}
