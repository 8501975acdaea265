package serve

// This file makes the predictors of which experts a mixture chooses next.

import (
	"errors"
	"slices"

	"tensorcast/event"
	"tensorcast/moe"
	"tensorcast/moe/hidden"
	"tensorcast/prefetch/mixture"
	"tensorcast/prefetch/models"
)

// predictorBytes bounds what a predictor that goes by ids takes of the target's memory. A predictor by inputs may
// take as much again for what it learns. The routers' copies, of a byte for each weight, come on top.
const predictorBytes = 4 << 20

// newPredictor makes a predictor that goes by what routers read, if the routers are found in the model's file.
// Otherwise it goes by the chosen experts alone.
func (s *server) newPredictor(r mixture.Routers, path string, id event.FileID) mixture.Predictor {
	s.saveRouting() // of the predictor before, if the target was left alone for a while
	p, routers, err := newInputPredictor(r, path, id)
	if err != nil {
		s.opts.Log.Info("experts are predicted by those that were chosen before", "why", err)
		shape := moe.Shape{Layers: len(r.Blocks), Experts: r.Experts, K: r.Chosen}
		return moe.NewIDMixture(shape, []int{1, 2}, predictorBytes)
	}
	s.loadRouting(p, routers)
	return p
}

// errOtherRouters says that the model has other files, too.
var errOtherRouters = errors.New("the file has other routers than those that were observed")

// newInputPredictor makes a predictor that goes by what routers and attention read.
func newInputPredictor(r mixture.Routers, path string, id event.FileID) (*hidden.Predictor, *hidden.Routers, error) {
	m, err := models.OpenPart(path, id)
	if err != nil {
		return nil, nil, err
	}
	routers, err := hidden.ReadRouters(m)
	if err != nil {
		return nil, nil, err
	}
	if !slices.Equal(routers.Blocks, r.Blocks) || routers.Experts != r.Experts {
		return nil, nil, errOtherRouters
	}
	p, err := hidden.New(routers, hidden.Options{Attention: true, Bytes: predictorBytes, IDs: predictorBytes})
	return p, routers, err
}
