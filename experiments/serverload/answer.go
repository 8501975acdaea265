package serverload

// This file requests one completion and reads it from the stream.

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// answer is one completion.
type answer struct {
	tokens []int32
	gaps   []float64 // ms from each token to the next
	took   float64   // ms from the request to the end of the answer
}

var words = strings.Fields("once upon a time the page cache held one weight of every layer and no other token " +
	"came to read it again")

// prompt returns a prompt that differs between requests, also in length.
func prompt(q request) string {
	n := 1 + (3*q.client+5*q.number)%len(words)
	return fmt.Sprintf("%d %d %s", q.client, q.number, strings.Join(words[:n], " "))
}

// requestCompletion makes a request. An answer that breaks off, or an HTTP error, is an error.
func (r *run) requestCompletion(ctx context.Context, q request) (*answer, error) {
	body, err := json.Marshal(map[string]any{
		"prompt": prompt(q), "n_predict": r.cfg.Tokens, "temperature": 0, "seed": 1, "ignore_eos": true,
		"cache_prompt": false, "stream": true, "return_tokens": true,
	})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/completion", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	begin := time.Now()
	resp, err := r.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		// If the body cannot be read, the status says enough.
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
		return nil, fmt.Errorf("status %s: %s", resp.Status, bytes.TrimSpace(text))
	}
	a := &answer{}
	if err := a.readEvents(resp.Body, time.Now); err != nil {
		return nil, err
	}
	a.took = milliseconds(time.Since(begin))
	return a, nil
}

// readEvents reads server-sent events until the one that marks the end.
func (a *answer) readEvents(body io.Reader, now func() time.Time) error {
	var last time.Time
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 4<<20) // the last event repeats the prompt and all settings
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		var event struct {
			Tokens []int32         `json:"tokens"`
			Stop   bool            `json:"stop"`
			Error  json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal(data, &event); err != nil {
			return fmt.Errorf("event %.80q: %w", data, err)
		}
		if event.Error != nil {
			return fmt.Errorf("the server says: %s", event.Error)
		}
		if event.Stop {
			return nil
		}
		at := now()
		if !last.IsZero() {
			a.gaps = append(a.gaps, milliseconds(at.Sub(last)))
		}
		last = at
		a.tokens = append(a.tokens, event.Tokens...)
	}
	return errors.Join(errors.New("the answer breaks off"), lines.Err())
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
