package pressure

// This file reads what a helper tells of its work.

import (
	"encoding/json"
	"strings"
)

// HelperReport is what a helper tells of its work. It is the last JSON object in its output that
// begins at the beginning of a line and has a positive number of tokens. The names are those of
// "prefetchd --json"; any helper may use them. What the helper leaves out is 0. Amounts are bytes.
type HelperReport struct {
	Tokens   int            `json:"tokens"` // generated while it helped
	TokS     float64        `json:"tokens_per_sec"`
	Expected float64        `json:"expected_tokens_per_sec"` // what it expects of its plan; 0: nothing
	Streamed int64          `json:"streamed_bytes"`          // what it read
	Late     int64          `json:"late"`                    // what the target reached first, and read itself
	Beyond   Beyond         `json:"beyond"`
	Experts  *HelperExperts `json:"experts,omitempty"`
}

// Beyond says why more was read than has no room in memory.
type Beyond struct {
	// Memory that keeps nothing.
	Window   int64 `json:"window"`
	Reserve  int64 `json:"reserve"`
	LeftFree int64 `json:"left_free"`
	Own      int64 `json:"own"`
	Unused   int64 `json:"unused"`
	// Read again, per token.
	Twice int64 `json:"twice"`
	Taken int64 `json:"taken"`
	Swept int64 `json:"swept"`
}

// HelperExperts is what the helper did for the experts of a mixture.
type HelperExperts struct {
	Chosen int64 `json:"chosen"`
	Missed int64 `json:"missed"`     // of the chosen ones, those that were not in memory
	Read   int64 `json:"read_bytes"` // for the chosen ones
	// Strays are the bytes that the target's misses read around themselves, and that were dropped
	// unused.
	Strays      int64       `json:"strays"`
	Speculative Speculative `json:"speculation"`
}

// Speculative is what was read before the choice was known.
type Speculative struct {
	Read int64 `json:"read_bytes"`
	Used int64 `json:"used_bytes"` // of Read, for experts that were then chosen
}

// parseHelperReport finds what a helper tells in its output; nil if it tells nothing.
func parseHelperReport(output string) *HelperReport {
	for end := len(output); end > 0; {
		at := strings.LastIndexByte(output[:end], '{')
		if at < 0 {
			return nil
		}
		end = at
		if at > 0 && output[at-1] != '\n' {
			continue
		}
		t := new(HelperReport)
		if json.NewDecoder(strings.NewReader(output[at:])).Decode(t) == nil && t.Tokens > 0 {
			return t
		}
	}
	return nil
}
