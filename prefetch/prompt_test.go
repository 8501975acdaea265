package prefetch_test

// This file tests in virtual time help for prompts: of a mixture, whose experts are streamed, and of a dense model.

import (
	"testing"
	"time"

	"tensorcast/pattern"
	"tensorcast/prefetch"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/pages"
	"tensorcast/sim"
)

// promptRows is how many tokens go through the model at once.
const promptRows = 512

// prompter computes prompts with a rig.
type prompter struct {
	*rig
	cycle *pattern.Cycle // a pass of promptRows tokens
	rows  int            // tokens for which routers choose
}

// newPrompter is a rig whose target also computes prompts. A pass computes for so long.
func newPrompter(
	t *testing.T, limit int64, power float64, pass time.Duration, opts prefetch.Options, change func(*sim.Config),
) *prompter {
	t.Helper()
	p := &prompter{rows: 1}
	p.rig = newMixtureRig(t, limit, power, opts, func(c *sim.Config) {
		route := c.Route
		c.Route = func(token, layer int) (ids []int32) {
			if p.rows == 1 {
				return route(token, layer)
			}
			for row := range p.rows {
				ids = append(ids, route(1000*(token+1)+row, layer)...)
			}
			return ids
		}
		if change != nil {
			change(c)
		}
	})
	p.cycle = stretch(p.rig.cycle, pass)
	return p
}

// stretch is a cycle whose ops compute for so long together.
func stretch(c *pattern.Cycle, pass time.Duration) *pattern.Cycle {
	var sum int64
	for i := range c.Reads {
		sum += c.Reads[i].Nanos
	}
	long := &pattern.Cycle{Files: c.Files}
	for _, r := range c.Reads {
		r.Nanos = int64(float64(r.Nanos) * float64(pass) / float64(sum))
		long.Reads = append(long.Reads, r)
	}
	return long
}

// repeatPasses is a cycle that goes through the model several times.
func repeatPasses(c *pattern.Cycle, passes int) *pattern.Cycle {
	all := &pattern.Cycle{Files: c.Files}
	for range passes {
		all.Reads = append(all.Reads, c.Reads...)
	}
	return all
}

// prompt computes a prompt of so many passes.
func (p *prompter) prompt(passes int) sim.Token {
	p.t.Helper()
	p.rows, p.Batch, p.Ubatch = promptRows, int32(passes*promptRows), promptRows
	token := p.runContext(1, repeatPasses(p.cycle, passes), 1)
	p.rows, p.Batch, p.Ubatch = 1, 0, 0
	return token
}

// residentExperts are the experts all of which is in memory, by layer and number.
func (p *prompter) residentExperts() map[[2]int]bool {
	p.t.Helper()
	there := map[[2]int]bool{}
	layer := -1
	for _, r := range p.rig.cycle.Reads {
		if !r.Experts {
			layer++
			continue
		}
		for e := range mixExperts {
			slice := pages.Range{Offset: r.Offset + int64(e)*r.Slice, Length: r.Slice}
			n, err := p.pages.ResidentBytes(slice)
			if err != nil {
				p.t.Fatal(err)
			}
			key := [2]int{layer, e}
			if before, seen := there[key]; n < r.Slice || seen && !before {
				there[key] = false
			} else {
				there[key] = true
			}
		}
	}
	for key, is := range there {
		if !is {
			delete(there, key)
		}
	}
	return there
}

// longer is the longer of two times: of the disk for so many bytes, and of computing.
func longer(bytes int64, compute time.Duration) time.Duration {
	return max(compute, time.Duration(float64(bytes)/1.5e9*float64(time.Second)))
}

const (
	mixModel = mixShared + mixRouted // bytes of the mixture
	// mixStream is what is left free besides mixMargin while a prompt is streamed: three tensors, and a window for
	// what every token reads.
	mixStream = 3*mixExperts*mib + window
)

// A prompt on a mixture that a target has generated with: what is not resident is read ahead, once for each pass. What
// is resident stays, but for the window, and serves the tokens after the prompt.
func TestPromptOfMixture(t *testing.T) {
	const limit, pass = mixModel * 4 / 10, 400 * time.Millisecond
	for _, passes := range []int{1, 4} {
		p := newPrompter(t, limit, skewed, pass, prefetch.Options{Always: true}, nil)
		p.run(100)
		before, kept := p.run(50), p.residentExperts()
		most := int64(passes) * (mixModel - limit + mixMargin + mixStream)
		for n := range 3 {
			token := p.prompt(passes)
			if token.TargetBytes > most/50 || token.HelperBytes > most {
				t.Errorf("%d passes, prompt %d: the target read %d bytes itself, want at most %d; "+
					"the helper read %d, want at most %d",
					passes, n, token.TargetBytes, most/50, token.HelperBytes, most)
			}
			if best := time.Duration(passes) * longer(most/int64(passes), pass); token.Time > best*10/9 {
				t.Errorf("%d passes, prompt %d: it takes %v, want at most a ninth more than %v",
					passes, n, token.Time, best)
			}
		}
		after := p.residentExperts()
		lost := 0
		for key := range kept {
			if !after[key] {
				lost++
			}
		}
		if lost > len(kept)*6/10 || len(kept) < 16 {
			t.Errorf("%d passes: %d of %d experts were not there after prompts, want at most 60 %% for the window",
				passes, lost, len(kept))
		}
		p.run(20)
		if token := p.run(50); token.Time > before.Time*11/10 || token.Misses > 100 {
			t.Errorf("%d passes: a token after prompts takes %v, want about %v as before; %d misses in 50, "+
				"want at most 100", passes, token.Time, before.Time, token.Misses)
		}
		if p.Overcommitted() > 0 {
			t.Errorf("%d passes: %d bytes exceed the limit, want 0", passes, p.Overcommitted())
		}
	}
}

// A target that only reads prompts is helped from its second one on, with reads of large ranges.
func TestOnlyPrompts(t *testing.T) {
	const limit, pass = mixModel * 4 / 10, 400 * time.Millisecond
	p := newPrompter(t, limit, uniform, pass, prefetch.Options{}, nil)
	p.Warmup = false
	first := p.prompt(1)
	for n := range 12 {
		calls := p.pages.Calls.ReadAhead
		token := p.prompt(1)
		if err := p.Sleep(5 * time.Millisecond); err != nil { // until its end is reported
			t.Fatal(err)
		}
		s := p.Status()
		if n == 0 && (s.Before <= 0 || s.Now <= 0) {
			t.Errorf("after one prompt with help: %+v, want how fast it was with help and without", s)
		}
		if s.Activity == prefetch.Comparing || token.HelperBytes == 0 {
			if n < 7 {
				t.Errorf("prompt %d: %s, the helper read %d bytes, want help for eight of them first",
					n, s.Activity, token.HelperBytes)
			}
			continue
		}
		calls = p.pages.Calls.ReadAhead - calls
		if mean := token.HelperBytes / int64(max(calls, 1)); mean < 2*mib {
			t.Errorf("prompt %d: %d calls read %d bytes, want at least 2 MiB each", n, calls, token.HelperBytes)
		}
		if most := int64(mixModel - limit + mixMargin + mixStream); n > 0 && n < 7 && (token.TargetBytes > most/50 ||
			token.HelperBytes > most || token.Time > longer(most, pass)*10/9) {
			t.Errorf("prompt %d: the target read %d bytes itself, the helper %d, in %v; want at most %d, %d, "+
				"and a ninth more than %v",
				n, token.TargetBytes, token.HelperBytes, token.Time, most/50, most, longer(most, pass))
		}
		if token.Time > first.Time*9/10 {
			t.Errorf("prompt %d: %v, want at most nine tenths of the %v without help", n, token.Time, first.Time)
		}
	}
	if s := p.Summary(); s.PromptTokens < 8*promptRows || s.Tokens != 0 || s.PromptTokensPerSec <= 0 ||
		s.Before <= 0 || s.PromptTokensPerSec <= s.Before {
		t.Errorf("%+v; want tokens of prompts, and that they are faster with help", s)
	}
	if p.Overcommitted() > 0 {
		t.Errorf("%d bytes exceed the limit, want 0", p.Overcommitted())
	}
}

// What is kept for prompts is spread over all layers, so that the disk has work while the target computes with it.
func TestPromptsShareTheRoom(t *testing.T) {
	const limit, pass = mixModel * 4 / 10, 250 * time.Millisecond // the disk takes about as long
	p := newPrompter(t, limit, uniform, pass, prefetch.Options{Always: true}, nil)
	p.Warmup = false
	for range 5 {
		p.prompt(1)
	}
	most := int64(mixModel - limit + mixMargin + mixStream)
	if token := p.prompt(1); token.Time > longer(most, pass)*10/9 || token.HelperBytes > most {
		t.Errorf("%v, want at most a ninth more than %v; the helper read %d bytes, want at most %d",
			token.Time, longer(most, pass), token.HelperBytes, most)
	}
	var kept [mixLayers]int
	for key := range p.residentExperts() {
		kept[key[0]]++
	}
	// Of the last layers, and of the first ones, there is also what is in the window.
	for layer, n := range kept[2 : mixLayers-1] {
		if n < 1 || n > 4 {
			t.Errorf("%d experts of layer %d are in memory, want 1 to 4; of all layers %v", n, layer+2, kept)
		}
	}
}

// Where the room is too small for the window, and for batches of few tokens, nothing is streamed.
func TestPromptIsNotStreamed(t *testing.T) {
	p := newPrompter(t, mixShared+mixMargin+40*mib, skewed, 400*time.Millisecond, prefetch.Options{Always: true}, nil)
	p.run(60)
	calls := p.pages.Calls.ReadAhead
	p.prompt(1)
	if n := p.pages.Calls.ReadAhead - calls; n > mixShared/mib {
		t.Errorf("without room: %d ranges were read ahead, want at most %d", n, mixShared/mib)
	}
	p = newPrompter(t, 300*mib, skewed, 400*time.Millisecond, prefetch.Options{Always: true}, nil)
	p.run(60)
	calls = p.pages.Calls.ReadAhead
	p.rows, p.Batch = 16, 16
	p.runContext(1, p.cycle, 4)
	if n := p.pages.Calls.ReadAhead - calls; n > 8 {
		t.Errorf("batches of 16: %d ranges were read ahead, want none of experts", n)
	}
}

// Prompts of a dense model are streamed as tokens are, in each pass, from the second one on.
func TestOnlyPromptsDense(t *testing.T) {
	const share = 0.7
	for _, passes := range []int{1, 4} {
		r := newRig(t, share, prefetch.Options{}, nil)
		r.Warmup = false
		const pass = 200 * time.Millisecond
		long := repeatPasses(stretch(r.cycle, pass), passes)
		r.Batch = int32(passes * promptRows)
		r.runContext(1, long, 1)
		size := r.cycle.Bytes()
		most := int64(passes) * (size - int64(share*float64(size)) + reserve + window + 12*mib)
		for n := range 6 {
			token := r.runContext(1, long, 1)
			if n == 0 { // nothing is held yet
				continue
			}
			if token.TargetBytes > most/20 || token.HelperBytes > most {
				t.Errorf("%d passes, prompt %d: the target read %d bytes itself, want at most %d; "+
					"the helper read %d, want at most %d",
					passes, n, token.TargetBytes, most/20, token.HelperBytes, most)
			}
			if best := time.Duration(passes) * longer(most/int64(passes), pass); token.Time > best*10/9 {
				t.Errorf("%d passes, prompt %d: it takes %v, want at most a ninth more than %v",
					passes, n, token.Time, best)
			}
		}
		if s := r.Summary(); s.PromptTokens < 5*passes*promptRows || s.Learned != 1 {
			t.Errorf("%d passes: %+v; want five prompts, and one pattern", passes, s)
		}
	}
}

// Where a prompt takes clearly longer without help, a comparison is one prompt.
func TestComparisonOfPrompts(t *testing.T) {
	r := newRig(t, 0.6, prefetch.Options{}, nil)
	if err := r.Use(r.cycle, []models.Mapped{{Path: r.Path(0)}}); err != nil {
		t.Fatal(err)
	}
	r.Batch = promptRows
	without := 0
	for range 40 {
		if token := r.run(1); token.HelperBytes == 0 {
			without++
		}
	}
	if s := r.Summary(); without != 1 || s.Before <= 0 || s.PromptTokensPerSec < s.Before*clearly {
		t.Errorf("%d prompts without help, want 1; %+v, want that help wins", without, s)
	}
}

// clearly is how many times as fast prompts of a dense model are with help, in these tests.
const clearly = 1.3

// In a prompt, whose ops are long, the loop looks more rarely than while tokens are generated.
func TestPauseInPrompt(t *testing.T) {
	r := newRig(t, 0.6, prefetch.Options{Always: true}, nil)
	r.run(10)
	during := func(c *pattern.Cycle) (pause time.Duration) {
		r.At(r.Now().Sub(r.Began())+20*time.Millisecond, func() { pause = r.Pause() })
		r.runContext(1, c, 1)
		return pause
	}
	token := during(r.cycle)
	r.Batch = promptRows
	prompt := during(stretch(r.cycle, 2*time.Second))
	if token <= 0 || token > time.Millisecond || prompt < 2*token || prompt > 4*time.Millisecond {
		t.Errorf("pauses of %v in a token and %v in a prompt, want at most 1 ms, and twice as long at least",
			token, prompt)
	}
}
