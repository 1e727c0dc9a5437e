package wire

import (
	"context"
	"encoding/json"

	"github.com/seed-a0a4f4e3/sluice/activities"
	"github.com/seed-a0a4f4e3/sluice/inventory"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/policy/expr"
)

var _ activities.Evaluator = evaluator{}

// evaluator gives package expr to the activities.
type evaluator struct{}

// RenderJSON renders the templates of a configuration.
func (evaluator) RenderJSON(config json.RawMessage, vars map[string]any, quote func(string) string) (json.RawMessage, error) {
	return expr.RenderJSON(config, vars, quote)
}

// Condition judges a measurement.
func (evaluator) Condition(ctx context.Context, source policy.Expression, vars map[string]any) (bool, error) {
	return expr.Condition(ctx, string(source), variables(vars))
}

// variables turns the activities' map of variables into expr's form of it. What a variable lacks is empty there, and an
// absent key reads as null.
func variables(vars map[string]any) expr.Vars {
	target := object(vars, "target")
	version := object(vars, "version")
	return expr.Vars{
		Target: inventory.Target{
			Name: text(target, "name"), Kind: text(target, "kind"), Identifier: text(target, "identifier"), Version: text(target, "version"),
			Metadata: object(target, "metadata"), Config: object(target, "config"),
		},
		Environment: text(object(vars, "environment"), "name"),
		Deployment:  text(object(vars, "deployment"), "name"),
		Version:     policy.Version{Name: text(version, "name"), Artifacts: texts(version, "artifacts"), Params: texts(version, "params")},
		Args:        object(vars, "args"),
		Result:      object(vars, "result"),
		Baseline:    object(vars, "baseline"),
	}
}

// object reads a map; nil if there is none.
func object(m map[string]any, key string) map[string]any {
	value, _ := m[key].(map[string]any)
	return value
}

// text reads a text; empty if there is none.
func text(m map[string]any, key string) string {
	value, _ := m[key].(string)
	return value
}

// texts reads a map of texts.
func texts(m map[string]any, key string) map[string]string {
	values := map[string]string{}
	for name := range object(m, key) {
		values[name] = text(object(m, key), name)
	}
	return values
}
