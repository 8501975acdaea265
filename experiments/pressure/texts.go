package pressure

// This file shows what the runs said, for people who want to see that it stays the same.

import (
	"strconv"
	"strings"

	"tensorcast/internal/tabular"
)

// maxShownText is how many characters of a text are shown.
const maxShownText = 160

// Texts is a table of what the runs said: a row for each variant and each text of it, and one for the runs without a
// limit. Of long texts the beginning is shown. Runs that did not finish said nothing.
func (r *Report) Texts() tabular.Document {
	type saying struct{ variant, text string }
	var order []saying
	runs := map[saying]int{}
	add := func(variant string, run *Run) {
		if run.Outcome != Finished {
			return
		}
		s := saying{variant, run.Text}
		if runs[s] == 0 {
			order = append(order, s)
		}
		runs[s]++
	}
	for i := range r.Unlimited {
		add("(no limit)", &r.Unlimited[i])
	}
	for _, v := range r.Variants {
		for i := range r.Runs {
			if r.Runs[i].Variant == v.Name {
				add(v.Name, &r.Runs[i])
			}
		}
	}
	t := &tabular.Table{Columns: []tabular.Column{{Name: "variant"}, {Name: "runs", Right: true}, {Name: "said"}}}
	for _, s := range order {
		text := []rune(strings.Join(strings.Fields(s.text), " "))
		if len(text) > maxShownText {
			text = append(text[:maxShownText], '…')
		}
		t.Rows = append(t.Rows, []string{s.variant, strconv.Itoa(runs[s]), string(text)})
	}
	return tabular.Document{t}
}
