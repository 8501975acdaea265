// Package llamaserver makes a llama-server a target of the instruments: it asks the server for tokens,
// and prints them as llamarun --stream does.
package llamaserver

// This file asks the questions and prints the answers.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"tensorcast/experiments/llama"
)

const (
	// requestTokens is how many tokens a request asks for. There are several requests, between
	// which the server is idle, and at each of which something may happen.
	requestTokens = 4
	// retryInterval is how long to wait for a server that is loading.
	retryInterval = 50 * time.Millisecond
	// maxAnswer bounds an answer, in bytes.
	maxAnswer = 1 << 20
)

// Questions says what a server is asked.
type Questions struct {
	Base   string   // the server's address: http://host:port
	Models []string // the names of a router's models; a server of one model needs none
	Prompt string   // which the first tokens follow
	Tokens int      // how many are asked for, of all models together
}

// PrintAnswers waits until a llama-server is ready. Then it asks the server for tokens that follow a
// prompt, a few at a time, the likeliest each time, and prints each when its request has ended. It
// computes each request from its first token on (cache_prompt is off), so that the same tokens come
// whatever was asked before. A router's models are asked at the same time, and the next requests are
// made when all have answered; a token's context is its model's number.
func PrintAnswers(ctx context.Context, q Questions, w io.Writer) error {
	if err := awaitServer(ctx, q.Base); err != nil {
		return err
	}
	out := json.NewEncoder(w)
	if err := out.Encode(llama.Result{}); err != nil { // llamarun's first line says that the model is loaded
		return err
	}
	models := q.Models
	if len(models) == 0 {
		models = []string{""}
	}
	talks := make([]talk, len(models))
	for i, name := range models {
		talks[i] = talk{base: q.Base, model: name, context: i, all: []any{q.Prompt}}
	}
	for left := q.Tokens; left > 0; {
		g, asking := errgroup.WithContext(ctx)
		for i := range talks {
			n := min(requestTokens, left)
			left -= n
			g.Go(func() error { return talks[i].ask(asking, n) })
		}
		if err := g.Wait(); err != nil {
			return err
		}
		for _, t := range talks {
			for _, token := range t.latest {
				if err := out.Encode(token); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// talk is a prompt and its answers so far, with one model. It is not safe for concurrent use.
type talk struct {
	base    string
	model   string        // a router's model; "": the server has but one
	context int           // its number
	all     []any         // the prompt, and the tokens so far
	latest  []llama.Token // of the latest request
}

// ask makes a request for n tokens. If n is 0 it only empties latest.
func (t *talk) ask(ctx context.Context, n int) error {
	t.latest = nil
	if n == 0 {
		return nil
	}
	question := map[string]any{
		"prompt": t.all, "n_predict": n, "temperature": 0, "cache_prompt": false, "ignore_eos": true,
		"return_tokens": true,
	}
	if t.model != "" {
		question["model"] = t.model
	}
	begin, err := monotonic()
	if err != nil {
		return err
	}
	var answer struct {
		Content string  `json:"content"`
		Tokens  []int32 `json:"tokens"`
	}
	if err := post(ctx, t.base+"/completion", question, &answer); err != nil {
		return err
	}
	if len(answer.Tokens) != n {
		return fmt.Errorf("the server generated %d tokens, %d were asked for", len(answer.Tokens), n)
	}
	end, err := monotonic()
	if err != nil {
		return err
	}
	for i, id := range answer.Tokens {
		token := llama.Token{Context: t.context, Token: len(t.all) - 1, ID: id, Begin: begin, End: end}
		if i == 0 {
			token.Text = answer.Content
		}
		t.latest = append(t.latest, token)
		t.all = append(t.all, id)
	}
	return nil
}

// monotonic is the time of llama.Token, in ns.
func monotonic() (int64, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return now.Nano(), err
}

// awaitServer waits until a server has loaded its model.
func awaitServer(ctx context.Context, base string) error {
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/health", nil)
		if err != nil {
			return fmt.Errorf("ask the server whether it is ready: %w", err)
		}
		if response, err := http.DefaultClient.Do(request); err == nil {
			_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxAnswer))
			if err := response.Body.Close(); err == nil && response.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(retryInterval):
		}
	}
}

func post(ctx context.Context, url string, question, answer any) (err error) {
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("ask the server for tokens: %w", err)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("read the server's answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the server answers %s: %.200s", response.Status, data)
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return fmt.Errorf("the server's answer: %w", err)
	}
	return nil
}

// FreePort returns a port of the loopback interface on which nobody listens now. If somebody takes it meanwhile, the
// server that is to listen there says so and ends.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}
