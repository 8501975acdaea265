package replay

// This file studies a trace: its profile, all predictors, all policies in caches of several sizes, and
// what follows from that in words.

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sync/errgroup"

	"tensorcast/internal/tabular"
	"tensorcast/moe"
)

// Options say what to study.
type Options struct {
	Rooms   []int64 // bytes of experts in memory; nil: a tenth, a fifth, two fifths, three fifths of all
	Curve   bool    // more rooms for figures, from a twentieth of all experts to all but as much
	Disk    Disk
	Compute Compute
	Workers int                   // that run at the same time, at least 1
	Done    func(done, total int) // after each part, one call at a time; may be nil
}

// Study is what was found.
type Study struct {
	Verdict    []string          `json:"verdict"` // a sentence each
	Model      string            `json:"model"`
	Layers     int               `json:"layers"`
	Experts    int               `json:"experts"`
	K          int               `json:"k"`
	Prompt     int               `json:"prompt_tokens"`
	Decode     int               `json:"decode_tokens"`
	AllBytes   int64             `json:"all_bytes"`   // of all experts; 0 if unknown
	TokenBytes int64             `json:"token_bytes"` // of the experts that a token chooses; 0 if unknown
	Profile    moe.Profile       `json:"profile"`
	Predictors []PredictorResult `json:"predictors"`
	Rooms      []RoomResult      `json:"rooms"` // nil if the trace has no generated tokens, or no sizes
	Curve      []RoomResult      `json:"-"`     // those of Options.Curve

	compute time.Duration // of a token
}

// PredictorResult is how good a predictor is.
type PredictorResult struct {
	Name string `json:"name"`
	*moe.Evaluation
}

// RoomResult is what caches of one size do.
type RoomResult struct {
	Bytes    int64          `json:"bytes"`
	Share    float64        `json:"share"` // of all experts
	Policies []PolicyResult `json:"policies"`
	// What a token takes at least, if reading and computing overlapped wholly: with the bytes that Belady
	// reads, and with the least that a policy reads that does not know the future.
	BeladyTime time.Duration `json:"belady_time_ns"`
	CausalTime time.Duration `json:"causal_time_ns"`
}

// PolicyResult is what a policy does.
type PolicyResult struct {
	Name    string  `json:"name"`
	HitRate float64 `json:"hit_rate"`
	Future  bool    `json:"future"` // it knows the future
	Ahead   bool    `json:"ahead"`  // it reads ahead
	*Result
}

// TokenTime is the mean time of a token.
func (p *PolicyResult) TokenTime() time.Duration { return p.Time / time.Duration(max(p.Tokens, 1)) }

// leads at which predictors are judged.
var leads = []int{1, 2, 4}

// Names in a study.
const (
	nameMixture = "mixture of all"
	nameLRU     = "LRU"
	nameBelady  = "Belady"
	namePinned  = "pinned, in hindsight"
	nameChance  = "chance"
	nameAhead   = "chance, read ahead"
)

// NewStudy studies a trace. It fails with ctx's error, or as Run does.
func NewStudy(ctx context.Context, t *moe.Trace, o Options) (*Study, error) {
	s := t.Shape()
	st := &Study{
		Model: t.Model, Layers: s.Layers, Experts: s.Experts, K: s.K, Prompt: t.FirstDecode(),
		Decode: len(t.Tokens) - t.FirstDecode(), TokenBytes: t.TokenBytes(),
		Profile: moe.NewProfile(t), compute: (o.Compute.Before + o.Compute.After) * time.Duration(s.Layers),
	}
	if st.TokenBytes > 0 {
		for _, l := range t.Layers {
			st.AllBytes += l.Bytes * int64(s.Experts)
		}
	}
	var parts []func(context.Context) error
	asked := 0
	st.predictors(t, &parts)
	if st.Decode > 0 && st.AllBytes > 0 {
		rooms := o.Rooms
		if rooms == nil {
			rooms = []int64{st.AllBytes / 10, st.AllBytes / 5, st.AllBytes * 2 / 5, st.AllBytes * 3 / 5}
		}
		for _, bytes := range rooms {
			st.Rooms = append(st.Rooms, RoomResult{Bytes: bytes, Share: float64(bytes) / float64(st.AllBytes)})
		}
		asked = len(st.Rooms)
		if o.Curve {
			for _, share := range curveShares {
				st.Rooms = append(st.Rooms, RoomResult{Bytes: int64(share * float64(st.AllBytes)), Share: share})
			}
		}
		st.replays(t, &o, &parts)
	}
	if err := runAll(ctx, parts, &o); err != nil {
		return nil, err
	}
	if asked < len(st.Rooms) {
		st.Rooms, st.Curve = st.Rooms[:asked:asked], st.Rooms[asked:]
	}
	for i := range st.Rooms {
		st.Rooms[i].bounds(st.compute, o.Disk)
	}
	st.Verdict = st.verdict()
	return st, nil
}

func runAll(ctx context.Context, parts []func(context.Context) error, o *Options) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(max(o.Workers, 1))
	var mu sync.Mutex
	done := 0
	for _, part := range parts {
		group.Go(func() error {
			if err := part(ctx); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if done++; o.Done != nil {
				o.Done(done, len(parts))
			}
			return nil
		})
	}
	return group.Wait()
}

// predictors lists what to evaluate.
func (st *Study) predictors(t *moe.Trace, parts *[]func(context.Context) error) {
	s, first := t.Shape(), t.Split()
	add := func(name string, predictor func() moe.Predictor) {
		i := len(st.Predictors)
		st.Predictors = append(st.Predictors, PredictorResult{Name: name})
		*parts = append(*parts, func(ctx context.Context) (err error) {
			st.Predictors[i].Evaluation, err = moe.Evaluate(ctx, t, predictor(), first, leads)
			return err
		})
	}
	add("frequency", func() moe.Predictor { return moe.NewFrequency(s, 0.93) })
	add("previous token", func() moe.Predictor { return moe.NewPrevious(s) })
	for i := range t.Tokens {
		if t.Tokens[i].ID != moe.UnknownID {
			add("same token before", func() moe.Predictor { return moe.NewSameToken(s, tableBytes/16) })
			break
		}
	}
	for _, distance := range leads {
		if distance < s.Layers && moe.MarkovBytes(s) <= tableBytes {
			add(fmt.Sprintf("Markov, %d before", distance), func() moe.Predictor { return moe.NewMarkov(s, distance) })
		}
	}
	add(nameMixture, func() moe.Predictor { return moe.NewIDs(s, leads, tableBytes) })
}

// replays lists what to run: what needs a forecast together, as that takes most of the time.
func (st *Study) replays(t *moe.Trace, o *Options, parts *[]func(context.Context) error) {
	s := t.Shape()
	add := func(f func() Forecast, names []PolicyResult, configs func(room int64) []Config) {
		begin := len(st.Rooms[0].Policies)
		for i := range st.Rooms {
			st.Rooms[i].Policies = append(st.Rooms[i].Policies, names...)
		}
		*parts = append(*parts, func(ctx context.Context) error {
			var all []Config
			for i := range st.Rooms {
				for _, c := range configs(st.Rooms[i].Bytes) {
					c.Capacity, c.Disk, c.Compute = st.Rooms[i].Bytes, o.Disk, o.Compute
					all = append(all, c)
				}
			}
			results, err := Run(ctx, t, f(), all...)
			for i, r := range results {
				p := &st.Rooms[i/len(names)].Policies[begin+i%len(names)]
				p.Result, p.HitRate = r, r.HitRate()
			}
			return err
		})
	}
	plain := func(p PolicyResult, policy func() moe.Policy) {
		add(func() Forecast { return Forecast{} }, []PolicyResult{p},
			func(int64) []Config { return []Config{{Policy: policy(), Threshold: 1}} })
	}
	for _, c := range causal {
		plain(PolicyResult{Name: c.name}, func() moe.Policy { return c.policy(s) })
	}
	add(func() Forecast { return IDs(s) }, []PolicyResult{{Name: nameChance}, {Name: nameAhead, Ahead: true}},
		func(room int64) []Config {
			return []Config{Causal(s, room, 1), Causal(s, room, Probable)}
		})
	plain(PolicyResult{Name: namePinned, Future: true}, func() moe.Policy { return NewPinned(t) })
	plain(PolicyResult{Name: nameBelady, Future: true}, func() moe.Policy { return NewBelady(t) })
}

// bounds computes what a token takes at least.
func (r *RoomResult) bounds(compute time.Duration, d Disk) {
	least := func(bytes int64) time.Duration {
		if d.Bandwidth == 0 {
			return compute
		}
		return max(compute, time.Duration(float64(bytes)/d.Bandwidth*1e9))
	}
	belady, causal := r.policy(nameBelady), r.best()
	r.BeladyTime, r.CausalTime = least(belady.PerToken(belady.DemandBytes)), least(causal.PerToken(causal.DemandBytes))
}

func (r *RoomResult) policy(name string) *PolicyResult {
	for i := range r.Policies {
		if r.Policies[i].Name == name {
			return &r.Policies[i]
		}
	}
	return nil
}

// best is the policy that reads least, of those that neither know the future nor read ahead.
func (r *RoomResult) best() *PolicyResult {
	var best *PolicyResult
	for i := range r.Policies {
		if p := &r.Policies[i]; !p.Future && !p.Ahead && (best == nil || p.DemandBytes < best.DemandBytes) {
			best = p
		}
	}
	return best
}

func percent(x float64) string { return fmt.Sprintf("%.0f %%", 100*x) }

func size(bytes int64) string { return humanize.IBytes(uint64(bytes)) }

// skill is how many times better than chance something must be for the verdict to speak of a static set,
// or of prediction.
const skill = 2

func (st *Study) verdict() []string {
	p := &st.Profile
	lines := []string{fmt.Sprintf("the %d of each layer's %d experts that were used most in the first half carry "+
		"%s of the second (%s if use were even)", p.Hot, st.Experts, percent(p.HotLoad),
		percent(float64(p.Hot)/float64(st.Experts)))}
	if p.HotLoad < skill*float64(p.Hot)/float64(st.Experts) {
		lines[0] += ": no static set"
	} else {
		lines[0] += ": a static set"
	}
	if len(st.Rooms) > 0 {
		// What most people have: two fifths, or the nearest to it.
		r := &st.Rooms[0]
		for i := range st.Rooms {
			if distance(st.Rooms[i].Share) < distance(r.Share) {
				r = &st.Rooms[i]
			}
		}
		lru, best, belady, pinned, ahead := r.policy(nameLRU), r.best(), r.policy(nameBelady), r.policy(namePinned),
			r.policy(nameAhead)
		lines = append(lines, fmt.Sprintf("with %s of the experts in memory (%s) LRU hits %s, the best set that "+
			"never changes %s (in hindsight), the best policy that does not know the future %s (%s), Belady %s",
			percent(r.Share), size(r.Bytes), percent(lru.HitRate), percent(pinned.HitRate), percent(best.HitRate),
			best.Name, percent(belady.HitRate)))
		verb := "does not pay"
		if ahead.Time < best.Time {
			verb = "pays"
		}
		lines = append(lines, fmt.Sprintf("reading ahead %s there: %s missed per token instead of %s, %s read in "+
			"all, and a token takes %s instead of %s on this disk", verb,
			size(ahead.PerToken(ahead.DemandBytes)), size(best.PerToken(best.DemandBytes)),
			size(ahead.PerToken(ahead.DemandBytes+ahead.SpeculativeBytes)),
			milliseconds(ahead.TokenTime()), milliseconds(best.TokenTime())))
	}
	mixture := &st.Predictors[len(st.Predictors)-1]
	if once, twice := mixture.Leads[0].At(1), mixture.Leads[0].At(2); once.N > 0 {
		text := "ids alone tell"
		if once.Recall < skill*p.Chance {
			text = "routing cannot be told from ids: they tell"
		}
		lines = append(lines, fmt.Sprintf("%s %s of a layer's experts one layer ahead with %d guesses, %s with %d "+
			"(chance: %s)", text,
			percent(once.Recall), once.N, percent(twice.Recall), twice.N, percent(p.Chance)))
	}
	switch {
	case st.Decode == 0:
		lines = append(lines, "no token was generated: caches are not replayed")
	case st.AllBytes == 0:
		lines = append(lines, "the trace does not tell how large experts are: caches are not replayed")
	}
	return lines
}

// distance from the share that the verdict is about.
func distance(share float64) float64 { return max(share-0.4, 0.4-share) }

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.1f ms", d.Seconds()*1000) }

// Document lays a study out for people, the verdict first.
func (st *Study) Document() tabular.Document {
	p := &st.Profile
	facts := tabular.Lines{
		fmt.Sprintf("%s: %d layers with %d experts, of which a token chooses %d; %d tokens of prompts, %d generated",
			st.Model, st.Layers, st.Experts, st.K, st.Prompt, st.Decode),
	}
	if st.AllBytes > 0 {
		facts = append(facts, fmt.Sprintf("experts: %s in all, %s per token", size(st.AllBytes), size(st.TokenBytes)))
	}
	facts = append(facts,
		fmt.Sprintf("load: entropy %.3f of an even one's (least even layer %.3f); %s of all experts were used at all",
			p.Entropy, p.Least, percent(p.Touched)),
		fmt.Sprintf("reuse: %s of an expert's uses are its first; of the others half come after %d token(s), "+
			"three quarters after %d, nine tenths after %d", percent(p.New), p.Reuse[0], p.Reuse[1], p.Reuse[2]),
		fmt.Sprintf("neighbours: %s of a token's experts were the previous token's (%s by chance)",
			percent(p.Overlap), percent(p.Chance)))
	d := tabular.Document{tabular.Lines(st.Verdict), facts}
	for i := range st.Rooms {
		d = append(d, st.Rooms[i].table())
	}
	return append(d, st.recalls(), st.curve())
}

func (r *RoomResult) table() *tabular.Table {
	t := &tabular.Table{
		Title: fmt.Sprintf("%s of experts in memory (%s); a token takes at least %s with what Belady reads, %s "+
			"with the best of those that do not know the future", size(r.Bytes), percent(r.Share),
			milliseconds(r.BeladyTime), milliseconds(r.CausalTime)),
		Columns: append(tabular.Left("policy"),
			tabular.Right("hits", "late", "missed/token", "read ahead/token", "for nothing", "stall/token",
				"time/token")...),
	}
	for i := range r.Policies {
		p := &r.Policies[i]
		t.Rows = append(t.Rows, []string{
			p.Name, fmt.Sprintf("%.1f %%", 100*p.HitRate),
			fmt.Sprintf("%.1f %%", 100*float64(p.Late)/float64(max(p.Used, 1))), size(p.PerToken(p.DemandBytes)),
			size(p.PerToken(p.SpeculativeBytes)), size(p.PerToken(p.WastedBytes)),
			milliseconds(p.Stall / time.Duration(max(p.Tokens, 1))), milliseconds(p.TokenTime()),
		})
	}
	return t
}

func (st *Study) recalls() *tabular.Table {
	t := &tabular.Table{Columns: tabular.Left("predictor")}
	for _, p := range st.Predictors {
		row := []string{p.Name}
		for _, l := range p.Leads {
			for _, s := range l.Scores {
				if l.Lead > 1 && s.Budget != 1 && s.Budget != 2 {
					continue
				}
				row = append(row, fmt.Sprintf("%.3f", s.Recall))
				if len(t.Rows) == 0 {
					t.Columns = append(t.Columns, tabular.Right(fmt.Sprintf("%d ahead, %d", l.Lead, s.N))...)
				}
			}
		}
		t.Rows = append(t.Rows, row)
		t.Title = fmt.Sprintf("recall, by layers ahead and number of guesses: learned from %d tokens, then scored "+
			"on %d, each before it is learned from", p.Trained, p.Scored)
	}
	return t
}

// curve shows how the mixture learns.
func (st *Study) curve() tabular.Lines {
	var points []string
	for _, x := range st.Predictors[len(st.Predictors)-1].Leads[0].Curve {
		points = append(points, fmt.Sprintf("%.2f", x))
	}
	return tabular.Lines{
		fmt.Sprintf("recall of the mixture with %d guesses, 1 ahead, by eighths of the scored tokens: %s", st.K,
			strings.Join(points, " ")),
	}
}
