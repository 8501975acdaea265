package replay

// This file studies a trace: its profile, all predictors, all policies in caches of several sizes, and a
// verdict in words.

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
	// Rooms are bytes of experts in memory. If it is nil, they are a tenth, a fifth, two fifths and three
	// fifths of all.
	Rooms []int64
	// Curve asks for more rooms for figures, from a twentieth of all experts to all but a tenth.
	Curve   bool
	Disk    Disk
	Compute Compute
	Workers int                   // how many parts run at the same time; at least 1
	Done    func(done, total int) // called after each part, one call at a time; may be nil
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
	Locality   *Locality         `json:"locality"`    // nil if the trace has no generated tokens, or no sizes
	Profile    moe.Profile       `json:"profile"`
	Predictors []PredictorResult `json:"predictors"`
	Rooms      []RoomResult      `json:"rooms"` // nil if the trace has no generated tokens, or no sizes
	Curve      []RoomResult      `json:"-"`     // the rooms of Options.Curve

	compute time.Duration // of a token
}

// PredictorResult says how good a predictor is.
type PredictorResult struct {
	Name string `json:"name"`
	*moe.Evaluation
}

// RoomResult says what caches of one size do.
type RoomResult struct {
	Bytes    int64          `json:"bytes"`
	Share    float64        `json:"share"` // of all experts
	Policies []PolicyResult `json:"policies"`
	// The least time of a token if reading and computing overlapped completely: with the bytes that
	// Belady reads, and with those of the best policy that does not know the future.
	BeladyTime time.Duration `json:"belady_time_ns"`
	CausalTime time.Duration `json:"causal_time_ns"`
}

// PolicyResult says what a policy does.
type PolicyResult struct {
	Name    string  `json:"name"`
	HitRate float64 `json:"hit_rate"`
	Future  bool    `json:"future"` // it knows the future
	Ahead   bool    `json:"ahead"`  // it reads ahead
	*Result
}

// TokenTime is the mean time of a token.
func (p *PolicyResult) TokenTime() time.Duration { return p.Time / time.Duration(max(p.Tokens, 1)) }

// leads are how many routers ahead predictors are judged.
var leads = []int{1, 2, 4}

// Names in a study.
const (
	nameMixture = "mixture of all"
	nameLRU     = "LRU"
	nameScored  = "prefetchd"
	nameBelady  = "Belady"
	namePinned  = "pinned, in hindsight"
	nameDensity = "hit density"
	nameAhead   = "hit density, read ahead"
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
		st.AllBytes = allBytes(t)
	}
	var parts []func(context.Context) error
	asked := 0
	st.addPredictors(t, &parts)
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
		st.addReplays(t, &o, &parts)
		var err error
		if st.Locality, err = prepareLocality(t, &o, &parts); err != nil {
			return nil, err
		}
	}
	if err := runParts(ctx, parts, &o); err != nil {
		return nil, err
	}
	if asked < len(st.Rooms) {
		st.Rooms, st.Curve = st.Rooms[:asked:asked], st.Rooms[asked:]
	}
	for i := range st.Rooms {
		st.Rooms[i].setBounds(st.compute, o.Disk)
	}
	if st.Locality != nil {
		st.Locality.judge()
		st.Verdict = st.Locality.Sentences()
	}
	st.Verdict = append(st.Verdict, st.makeVerdict()...)
	return st, nil
}

func runParts(ctx context.Context, parts []func(context.Context) error, o *Options) error {
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

// addPredictors lists the evaluations of all predictors.
func (st *Study) addPredictors(t *moe.Trace, parts *[]func(context.Context) error) {
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
	add(nameMixture, func() moe.Predictor { return moe.NewIDMixture(s, leads, tableBytes) })
}

// addReplays lists the replays of all policies. Those that need a forecast run together, as the forecast
// takes most of the time.
func (st *Study) addReplays(t *moe.Trace, o *Options, parts *[]func(context.Context) error) {
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
					c.Capacity, c.Disk, c.Compute, c.Full = st.Rooms[i].Bytes, o.Disk, o.Compute, true
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
	add(func() Forecast { return ForecastByIDs(s) },
		[]PolicyResult{{Name: nameDensity}, {Name: nameAhead, Ahead: true}},
		func(room int64) []Config {
			return []Config{ConfigByIDs(s, room, 1), ConfigByIDs(s, room, ProbableThreshold)}
		})
	plain(PolicyResult{Name: namePinned, Future: true}, func() moe.Policy { return NewPinned(t) })
	plain(PolicyResult{Name: nameBelady, Future: true}, func() moe.Policy { return NewBelady(t) })
}

// setBounds computes the least times of a token.
func (r *RoomResult) setBounds(compute time.Duration, d Disk) {
	least := func(bytes int64) time.Duration {
		if d.Bandwidth == 0 {
			return compute
		}
		return max(compute, time.Duration(float64(bytes)/d.Bandwidth*1e9))
	}
	belady, causal := r.policyNamed(nameBelady), r.bestCausal()
	r.BeladyTime, r.CausalTime = least(belady.PerToken(belady.DemandBytes)), least(causal.PerToken(causal.DemandBytes))
}

func (r *RoomResult) policyNamed(name string) *PolicyResult {
	for i := range r.Policies {
		if r.Policies[i].Name == name {
			return &r.Policies[i]
		}
	}
	return nil
}

// bestCausal is the policy that reads least, of those that neither know the future nor read ahead.
func (r *RoomResult) bestCausal() *PolicyResult {
	var best *PolicyResult
	for i := range r.Policies {
		if p := &r.Policies[i]; !p.Future && !p.Ahead && (best == nil || p.DemandBytes < best.DemandBytes) {
			best = p
		}
	}
	return best
}

func percentText(x float64) string { return fmt.Sprintf("%.0f %%", 100*x) }

func bytesText(bytes int64) string { return humanize.IBytes(uint64(bytes)) }

// skill is how many times better than at random something has to be before the verdict speaks of a static
// set, or of prediction.
const skill = 2

// makeVerdict says what besides Locality is to be said first.
func (st *Study) makeVerdict() []string {
	p := &st.Profile
	lines := []string{fmt.Sprintf("the %d of each layer's %d experts that were used most in the first half carry "+
		"%s of the second (%s if use were even)", p.Hot, st.Experts, percentText(p.HotLoad),
		percentText(float64(p.Hot)/float64(st.Experts)))}
	if p.HotLoad < skill*float64(p.Hot)/float64(st.Experts) {
		lines[0] += ": no static set"
	} else {
		lines[0] += ": a static set"
	}
	if len(st.Rooms) > 0 {
		// Two fifths is what most people have. This is the room that is nearest to it.
		r := &st.Rooms[0]
		for i := range st.Rooms {
			if verdictDistance(st.Rooms[i].Share) < verdictDistance(r.Share) {
				r = &st.Rooms[i]
			}
		}
		lru, best, belady, pinned, ahead := r.policyNamed(nameLRU), r.bestCausal(), r.policyNamed(nameBelady),
			r.policyNamed(namePinned),
			r.policyNamed(nameAhead)
		lines = append(lines, fmt.Sprintf("with %s of the experts in memory (%s) LRU hits %s, the best set that "+
			"never changes %s (in hindsight), the best policy that does not know the future %s (%s), Belady %s",
			percentText(r.Share), bytesText(r.Bytes), percentText(lru.HitRate), percentText(pinned.HitRate),
			percentText(best.HitRate),
			best.Name, percentText(belady.HitRate)))
		verb := "does not pay"
		if ahead.Time < best.Time {
			verb = "pays"
		}
		lines = append(lines, fmt.Sprintf("reading ahead %s there: %s missed per token instead of %s, %s read in "+
			"all, and a token takes %s instead of %s on this disk", verb,
			bytesText(ahead.PerToken(ahead.DemandBytes)), bytesText(best.PerToken(best.DemandBytes)),
			bytesText(ahead.PerToken(ahead.DemandBytes+ahead.SpeculativeBytes)),
			millisecondsText(ahead.TokenTime()), millisecondsText(best.TokenTime())))
	}
	mixture := &st.Predictors[len(st.Predictors)-1]
	if once, twice := mixture.Leads[0].At(1), mixture.Leads[0].At(2); once.N > 0 {
		text := "ids alone tell"
		if once.Recall < skill*p.Chance {
			text = "routing cannot be told from ids: they tell"
		}
		lines = append(lines, fmt.Sprintf("%s %s of a layer's experts one layer ahead with %d guesses, %s with %d "+
			"(at random: %s)", text,
			percentText(once.Recall), once.N, percentText(twice.Recall), twice.N, percentText(p.Chance)))
	}
	switch {
	case st.Decode == 0:
		lines = append(lines, "no token was generated: caches are not replayed")
	case st.AllBytes == 0:
		lines = append(lines, "the trace does not tell how large experts are: caches are not replayed")
	}
	return lines
}

// verdictDistance is how far a share is from the one that the verdict is about.
func verdictDistance(share float64) float64 { return max(share-0.4, 0.4-share) }

func millisecondsText(d time.Duration) string { return fmt.Sprintf("%.1f ms", d.Seconds()*1000) }

// Document lays a study out for a terminal: what memory buys, in a sentence and a table, then the rest of the verdict.
func (st *Study) Document() tabular.Document {
	p := &st.Profile
	facts := tabular.Lines{
		fmt.Sprintf("%s: %d layers with %d experts, of which a token chooses %d; %d tokens of prompts, %d generated",
			st.Model, st.Layers, st.Experts, st.K, st.Prompt, st.Decode),
	}
	if st.AllBytes > 0 {
		facts = append(facts, fmt.Sprintf("experts: %s in all, %s per token", bytesText(st.AllBytes),
			bytesText(st.TokenBytes)))
	}
	facts = append(facts,
		fmt.Sprintf("load: entropy %.3f of an even one's (least even layer %.3f); %s of all experts were used at all",
			p.Entropy, p.Least, percentText(p.Touched)),
		fmt.Sprintf("reuse: %s of an expert's uses are its first; of the others half come after %d token(s), "+
			"three quarters after %d, nine tenths after %d", percentText(p.New), p.Reuse[0], p.Reuse[1], p.Reuse[2]),
		fmt.Sprintf("neighbours: %s of a token's experts were the previous token's (%s at random)",
			percentText(p.Overlap), percentText(p.Chance)))
	d := tabular.Document{tabular.Lines(st.Verdict), facts}
	if st.Locality != nil {
		d = tabular.Document{
			tabular.Lines(st.Verdict[:1]), st.Locality.Table(), tabular.Lines(st.Verdict[1:]), facts,
		}
	}
	for i := range st.Rooms {
		d = append(d, st.Rooms[i].table())
	}
	return append(d, st.recallTable(), st.learningCurve())
}

func (r *RoomResult) table() *tabular.Table {
	t := &tabular.Table{
		Title: fmt.Sprintf("%s of experts in memory (%s); a token takes at least %s with what Belady reads, %s "+
			"with the best of those that do not know the future", bytesText(r.Bytes), percentText(r.Share),
			millisecondsText(r.BeladyTime), millisecondsText(r.CausalTime)),
		Columns: append(tabular.Left("policy"),
			tabular.Right("hits", "late", "missed/token", "read ahead/token", "for nothing", "stall/token",
				"time/token")...),
	}
	for i := range r.Policies {
		p := &r.Policies[i]
		t.Rows = append(t.Rows, []string{
			p.Name, fmt.Sprintf("%.1f %%", 100*p.HitRate),
			fmt.Sprintf("%.1f %%", 100*float64(p.Late)/float64(max(p.Used, 1))), bytesText(p.PerToken(p.DemandBytes)),
			bytesText(p.PerToken(p.SpeculativeBytes)), bytesText(p.PerToken(p.WastedBytes)),
			millisecondsText(p.Stall / time.Duration(max(p.Tokens, 1))), millisecondsText(p.TokenTime()),
		})
	}
	return t
}

func (st *Study) recallTable() *tabular.Table {
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

// learningCurve shows how the mixture learns.
func (st *Study) learningCurve() tabular.Lines {
	var points []string
	for _, x := range st.Predictors[len(st.Predictors)-1].Leads[0].Curve {
		points = append(points, fmt.Sprintf("%.2f", x))
	}
	return tabular.Lines{
		fmt.Sprintf("recall of the mixture with %d guesses, 1 ahead, by eighths of the scored tokens: %s", st.K,
			strings.Join(points, " ")),
	}
}
