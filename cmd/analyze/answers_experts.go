package main

// This file has the analysis experts: how a mixture of experts uses its experts.

import (
	"context"
	"fmt"

	"tensorcast/moe"
	"tensorcast/report/gather"
)

const expertsLong = `analyze experts says which experts each token of a mixture chooses, how evenly, and how soon it chooses them again. It
writes tables (CSV and Parquet) and figures:

  experts           each expert of each layer: how often the prompt and generated tokens chose it, and after how many
                    tokens again
  experts_layers    each layer: how even its load is, its hottest and coldest expert, and how many of its choices the
                    token before had made, too
  experts_tokens    each token: how many of its experts the token before had chosen, and how many no earlier token had
  experts_together  which share of all experts 1, 2, 4 and more tokens in a row touch, as a prompt or a batch does

The figure experts shows which share of tokens chooses each expert. experts_map shows the choices of each token.
experts_tokens shows how many experts were ever chosen as tokens go on, and how many a token has in common with the
token before. If there are very many experts, those that are chosen most come first, and several share a column or a
row. analyze moe says what memory for experts, and predicting them, would gain.`

// routes is which experts the tokens of the analysed context chose.
func (s *study) routes() (*moe.Trace, error) {
	empty := s.experts()
	if empty == nil {
		return nil, fmt.Errorf("%w: this is a dense model", moe.ErrNoRoutes)
	}
	steps, err := moe.Steps(s.in.capture.Steps(), s.pattern.Context)
	if err != nil {
		return nil, err
	}
	return moe.FromRoutes(empty, s.in.capture.Routes(), steps)
}

// expertsAnswer makes the tables and figures of experts.
func expertsAnswer(_ context.Context, s *study) (*answer, error) {
	t, err := s.routes()
	if err != nil {
		return nil, err
	}
	e := gather.NewExperts(t)
	a := &answer{text: e.Document(), data: e.Data()}
	for _, table := range e.Tables() {
		a.files = append(a.files, tableFiles(table.Name, table.Columns, s.modelField())...)
	}
	shares := e.ShareFigure()
	shares.Text.Title, shares.Text.Caption = s.title("how often experts are chosen"), s.caption()
	a.files = append(a.files, figureFiles("experts", shares, s.format)...)
	var choices drawing
	if f, err := e.ChoiceFigure(); err != nil {
		s.in.warn("left out: the figure experts_map: %v", err)
	} else {
		f.Text.Title, f.Text.Caption = s.title("which experts tokens choose"), s.caption()
		choices = f
	}
	a.files = append(a.files, figureFiles("experts_map", choices, s.format)...)
	curves := e.TokensFigure(s.title("experts, token by token"), s.caption())
	a.files = append(a.files, figureFiles("experts_tokens", drawingOf(curves), s.format)...)
	return a, nil
}
