// This file runs the driver and reads its result.

package llama

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// Options says what the driver does. Zero values mean the driver's defaults, except for Tokens.
type Options struct {
	Model    string // path of the GGUF file (of a split model: its first)
	Prompt   string // may be empty if the model begins a text with a BOS token
	Tokens   int    // to generate, exactly: the end-of-sequence token does not stop it. 0 decodes only the prompt.
	Threads  int    // 0: as many as there are CPUs to run on
	Context  int    // context size in tokens; 0: what prompt and Tokens need, at least 512
	Repeat   int    // generations in the one process, each from an empty memory; 0: 1
	NoRepack bool   // keep weights in the mapped file, do not copy them to another layout
	LoadMode string // none, mmap, mlock, mmap+mlock, dio; "": the library's own (mmap)
	Warmup   string // cli: one decode of BOS and EOS, as llama-cli does; all: the same through every expert; none; "": cli
	Mark     int    // open descriptor to write to: b when the prompt is decoded, t after each token; 0: none
	Ops      string // file to write the ground truth to, for [ReadOps]; it appears when all is done

	Model2     string   // another model, in contexts of its own, numbered after those of the first
	Contexts   int      // of each model, decoded in turn, token by token; 0: 1
	Concurrent bool     // decode each context from a thread of its own
	Parallel   int      // sequences in each context, decoded in one batch; 0: 1
	Prompts    []string // more prompts: Prompt and these are dealt to the contexts and their sequences in turn
	CountOps   bool     // fill in Result.Nodes and Result.Ops
	Stream     bool     // print each token as it comes, for [NewStream], instead of a result; SIGTERM ends it after the generation at hand

	// Logits is a file to write the predictions of a text's tokens to, for [NewLogits], and nothing is generated. It appears when all is done; if
	// it is a pipe, they come one by one. It takes one context of one model, and neither prompt nor Tokens. Context is then the length of a chunk,
	// 0: 256.
	Logits   string
	TextFile string // the text, with Logits
	Chunks   int    // no more of its chunks; 0: all
}

func (o Options) args() []string {
	// A value is joined to its long flag by "=", and a short flag's comes next: both stay values if they begin with "-".
	args := []string{"-m", o.Model, "-n", strconv.Itoa(o.Tokens)}
	if o.Prompt != "" || o.Logits == "" {
		args = append(args, "-p", o.Prompt)
	}
	for _, p := range o.Prompts {
		args = append(args, "-p", p)
	}
	for _, f := range []struct {
		flag  string
		value int
	}{{"-t", o.Threads}, {"-c", o.Context}} {
		if f.value != 0 {
			args = append(args, f.flag, strconv.Itoa(f.value))
		}
	}
	for _, f := range []struct {
		flag  string
		value int
	}{{"--repeat=", o.Repeat}, {"--mark=", o.Mark}, {"--contexts=", o.Contexts}, {"--parallel=", o.Parallel}, {"--chunks=", o.Chunks}} {
		if f.value != 0 {
			args = append(args, f.flag+strconv.Itoa(f.value))
		}
	}
	for _, f := range []struct {
		flag string
		set  bool
	}{{"--no-repack", o.NoRepack}, {"--concurrent", o.Concurrent}, {"--count-ops", o.CountOps}, {"--stream", o.Stream}} {
		if f.set {
			args = append(args, f.flag)
		}
	}
	for _, f := range []struct{ flag, value string }{
		{"--load-mode=", o.LoadMode}, {"--warmup=", o.Warmup}, {"--ops=", o.Ops}, {"--model2=", o.Model2}, {"--logits=", o.Logits}, {"--text-file=", o.TextFile},
	} {
		if f.value != "" {
			args = append(args, f.flag+f.value)
		}
	}
	return args
}

// Generation is one decoding of the prompt and the tokens after it, in one sequence of one context.
type Generation struct {
	Context  int       `json:"context"`
	Sequence int       `json:"sequence"`
	Text     string    `json:"text"` // of Tokens; bytes that are not valid UTF-8 are U+FFFD
	Tokens   []int32   `json:"tokens"`
	PromptMs float64   `json:"prompt_ms"`
	TokenMs  []float64 `json:"token_ms"` // one per token: choosing it and decoding it, together with those of the context's other sequences
	TokS     float64   `json:"tok_s"`    // tokens per second, the prompt left out
}

// Result is what the driver prints. Times are milliseconds on the wall.
type Result struct {
	Generation                // the first
	Repeat       []Generation `json:"repeat"` // the others: by repeat, then context, then sequence
	PID          int          `json:"pid"`
	PromptTokens int          `json:"prompt_tokens"` // with Options.Logits: the text's
	Threads      int          `json:"threads"`
	LoadMs       float64      `json:"load_ms"` // model and context
	WarmupMs     float64      `json:"warmup_ms"`
	Llama        string       `json:"llama"` // ggml's version and commit
	Lib          string       `json:"lib"`   // the directory of the libraries

	// With Options.CountOps: how many nodes were computed by all contexts, the warm-ups included, and by ggml's name of the op. Nodes that
	// compute nothing (views) are not counted; of those that ggml fuses at run time each is.
	Nodes int64            `json:"nodes"`
	Ops   map[string]int64 `json:"ops"`
}

// Generations returns all of them, in order.
func (r *Result) Generations() []Generation {
	return append([]Generation{r.Generation}, r.Repeat...)
}

// RunError says that the driver failed. It wraps the [*exec.ExitError], which knows the signal if one ended it (as the OOM killer does).
type RunError struct {
	Message string // the driver's one line, without its name; or how it ended
	Exit    *exec.ExitError
}

func (e *RunError) Error() string { return driverName + ": " + e.Message }

func (e *RunError) Unwrap() error { return e.Exit }

// Command returns the command that runs the driver, for those who start it in their own way. Its result is JSON on stdout, see [ParseResult].
func (in *Installation) Command(ctx context.Context, o Options) *exec.Cmd {
	return exec.CommandContext(ctx, in.Driver, o.args()...)
}

// Run runs the driver to its end. A failure of the driver is a [*RunError]; ending ctx kills it.
func (in *Installation) Run(ctx context.Context, o Options) (*Result, error) {
	cmd := in.Command(ctx, o)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := failure(ctx, cmd.Run(), stderr.String()); err != nil {
		return nil, err
	}
	return ParseResult(stdout.Bytes())
}

// failure is what became of a driver that ended with err and printed stderr; nil if err is.
func failure(ctx context.Context, err error, stderr string) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", driverName, context.Cause(ctx))
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		message := exit.Error()
		if text := strings.TrimSpace(stderr); text != "" {
			message = strings.TrimPrefix(text, driverName+": ")
			if exit.ExitCode() < 0 { // a signal: what was printed before it may not say all
				message = exit.Error() + ": " + message
			}
		}
		return &RunError{Message: message, Exit: exit}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", driverName, err)
	}
	return nil
}

// ParseResult reads what the driver printed.
func ParseResult(stdout []byte) (*Result, error) {
	var r Result
	if err := json.Unmarshal(stdout, &r); err != nil {
		return nil, fmt.Errorf("result of %s: %w", driverName, err)
	}
	return &r, nil
}
