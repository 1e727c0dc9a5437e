// Package expr evaluates what documents write as CEL, and renders their templates. It is where selectors, wave
// membership, sort keys and metric conditions become values.
//
// It must not decide anything: a value, or the reason why there is none, goes back to policy. It reads no clock and does
// no I/O, and it is never called from workflow code; evaluation is bounded in size, depth and cost.
package expr

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"

	"github.com/seed-a0a4f4e3/sluice/inventory"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// Bounds on one expression. They are far above what people write, and low enough that no document, however hostile, can
// hold up a load or a plan.
const (
	maxSource  = 4 << 10 // bytes
	maxNesting = 64      // nested operands, brackets included
	maxNodes   = 4 << 10 // nodes after macros are expanded
	maxCost    = 100_000 // CEL cost units: about a few ms
	maxRegex   = 1_000   // instructions of a compiled constant pattern
	// interruptEvery is how many steps of a loop run between two looks at the context.
	interruptEvery = 100
)

// Scope says where an expression stands, and with it which variables it sees and what it may give.
type Scope int

// The scopes.
const (
	// InSelector sees target (also named resource), environment, deployment and version, and gives a bool.
	InSelector Scope = iota
	// InSortKey sees what a selector sees, and gives a number, a text, a bool or null.
	InSortKey
	// InCondition sees what a selector sees, and result, baseline and args; it gives a bool.
	InCondition
)

// fields are the variables with a fixed set of fields. A field outside it can only be a slip of the pen, so it is an
// error when compiled, not a null when evaluated.
var fields = map[string][]string{
	"target":      {"name", "kind", "identifier", "version", "metadata", "labels", "config"},
	"resource":    {"name", "kind", "identifier", "version", "metadata", "labels", "config"},
	"environment": {"name"},
	"deployment":  {"name"},
	"version":     {"name", "tag", "artifacts", "params"},
}

// variables lists what a scope sees, in the order in which errors list it.
func (s Scope) variables() []string {
	common := []string{"target", "resource", "environment", "deployment", "version"}
	if s == InCondition {
		return append([]string{"result", "baseline", "args"}, common...)
	}
	return common
}

// Vars are the values of the variables for one evaluation.
type Vars struct {
	Target inventory.Target
	// Environment and Deployment are names.
	Environment string
	Deployment  string
	Version     policy.Version
	// Args are a check's arguments. Result is what was measured, Baseline the same measured just before the change;
	// nil Baseline means that there is none: what is read from it is null.
	Args     map[string]any
	Result   map[string]any
	Baseline map[string]any
}

// Map returns the variables under the names by which expressions and templates know them.
func (v Vars) Map() map[string]any {
	target := targetMap(v.Target)
	return map[string]any{
		"target":      target,
		"resource":    target,
		"environment": map[string]any{"name": v.Environment},
		"deployment":  map[string]any{"name": v.Deployment},
		"version": map[string]any{
			"name": v.Version.Name, "tag": v.Version.Name,
			"artifacts": widen(v.Version.Artifacts), "params": widen(v.Version.Params),
		},
		"args":     notNil(v.Args),
		"result":   notNil(v.Result),
		"baseline": notNil(v.Baseline),
	}
}

func targetMap(t inventory.Target) map[string]any {
	metadata := notNil(t.Metadata)
	return map[string]any{
		"name": t.Name, "kind": t.Kind, "identifier": t.Identifier, "version": t.Version,
		"metadata": metadata, "labels": metadata, "config": notNil(t.Config),
	}
}

func notNil(m map[string]any) map[string]any {
	if m == nil {
		return map[string]any{}
	}
	return m
}

func widen(m map[string]string) map[string]any {
	wide := make(map[string]any, len(m))
	for k, v := range m {
		wide[k] = v
	}
	return wide
}

// Compile reports why the source is not a usable expression in its scope; the error is one line and says where.
func Compile(source string, scope Scope) error {
	p, err := compile(source, scope == InCondition)
	if err != nil {
		return err
	}
	if out := p.ast.OutputType(); scope != InSortKey && !out.IsExactType(types.BoolType) && !out.IsExactType(types.DynType) {
		return fmt.Errorf("gives a %s; it must give true or false", typeName(out.TypeName()))
	}
	return nil
}

// Reads lists the variables that the source reads and, for those followed by a constant field, the first field too:
// "baseline", "args.below". Sorted, each once; nil if the source does not compile.
func Reads(source string) []string {
	p, err := compile(source, true)
	if err != nil {
		return nil
	}
	read := map[string]bool{}
	walk(p.ast.NativeRep().Expr(), func(e ast.Expr) {
		switch root, steps := chain(e); {
		case root == "" || p.loopVars[root]:
		case len(steps) == 0:
			read[root] = true
		case len(steps) == 1 && steps[0].name != "":
			read[root+"."+steps[0].name] = true
		}
	})
	names := make([]string, 0, len(read))
	for name := range read {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Matches evaluates each expression for each target of the snapshot; vars.Target is ignored. An expression that fails on
// a target has the reason as that value's Err. The error is for what makes every value worthless: an expression that
// does not compile, or a context that is done.
func Matches(ctx context.Context, exprs []policy.Expression, snap inventory.Snapshot, vars Vars) (policy.Matches, error) {
	matches := make(policy.Matches, len(exprs))
	programs := make([]*program, 0, len(exprs))
	for _, source := range exprs {
		if _, ok := matches[source]; ok {
			continue
		}
		p, err := compile(string(source), false)
		if err != nil {
			return nil, fmt.Errorf("expr: %q: %w", source, err)
		}
		matches[source] = make([]policy.Value, len(snap.Targets))
		programs = append(programs, p)
	}
	input := vars.Map()
	for i, t := range snap.Targets {
		target := targetMap(t)
		input["target"], input["resource"] = target, target
		for _, p := range programs {
			value, err := p.evaluate(ctx, input)
			if ctx.Err() != nil {
				return nil, fmt.Errorf("expr: evaluating %q: %w", p.source, context.Cause(ctx))
			}
			if err != nil {
				value = policy.Value{Err: err.Error()}
			}
			matches[policy.Expression(p.source)][i] = value
		}
	}
	return matches, nil
}

// Condition judges one measurement: what the condition says of vars. Anything but true or false is an error.
func Condition(ctx context.Context, source string, vars Vars) (bool, error) {
	p, err := compile(source, true)
	if err != nil {
		return false, fmt.Errorf("%q: %w", source, err)
	}
	value, err := p.evaluate(ctx, vars.Map())
	if err != nil {
		return false, err
	}
	truth, ok := value.V.(bool)
	if !ok {
		return false, fmt.Errorf("%q gives %s; it must give true or false", source, describe(value.V))
	}
	return truth, nil
}

func describe(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case string:
		return "a text"
	case float64, int, int64:
		return "a number"
	case bool:
		return "true or false"
	case []any:
		return "a list"
	case map[string]any:
		return "a map"
	default:
		return fmt.Sprintf("a %T", v)
	}
}

// program is one compiled expression; safe for concurrent use.
type program struct {
	source   string
	ast      *cel.Ast
	run      cel.Program
	loopVars map[string]bool
}

// cacheLimit bounds the compiled expressions that are kept. A fleet's documents hold a few hundred; above the limit the
// cache starts afresh, because a load that needs more is a load of its own.
const cacheLimit = 4096

type cacheKey struct {
	source    string
	condition bool
}

type cacheEntry struct {
	program *program
	err     error
}

// compiled keeps what was compiled: programs are immutable and depend on nothing but their source.
var compiled = struct {
	sync.RWMutex
	entries map[cacheKey]cacheEntry
}{entries: map[cacheKey]cacheEntry{}}

func compile(source string, condition bool) (*program, error) {
	key := cacheKey{source, condition}
	compiled.RLock()
	entry, ok := compiled.entries[key]
	compiled.RUnlock()
	if ok {
		return entry.program, entry.err
	}
	entry.program, entry.err = build(source, condition)
	if len(source) > maxSource {
		return nil, entry.err
	}
	compiled.Lock()
	defer compiled.Unlock()
	if len(compiled.entries) >= cacheLimit {
		clear(compiled.entries)
	}
	compiled.entries[key] = entry
	return entry.program, entry.err
}

// The CEL environments: selectors and sort keys share one.
var (
	selectorEnv  = sync.OnceValues(func() (*cel.Env, error) { return newEnv(InSelector) })
	conditionEnv = sync.OnceValues(func() (*cel.Env, error) { return newEnv(InCondition) })
)

func newEnv(scope Scope) (*cel.Env, error) {
	// cel-go labels its two shared error values with the first node that meets them. Labelled with no node from the
	// start, they are never written to again, and two evaluations cannot race on them.
	types.LabelErrNode(-1, types.NoSuchOverloadErr())
	types.LabelErrNode(-1, types.Int(math.MaxInt64).ConvertToType(types.TimestampType))
	opts := []cel.EnvOption{
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
		cel.ParserExpressionSizeLimit(maxSource),
		cel.ParserRecursionLimit(maxNesting),
		cel.ExpressionNodeLimit(maxNodes),
		cel.RegexProgramSizeLimit(maxRegex),
		cel.EnableMacroCallTracking(),
		cel.ASTValidators(cel.ValidateRegexLiterals(), cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals()),
	}
	for _, name := range scope.variables() {
		opts = append(opts, cel.Variable(name, cel.DynType))
	}
	return cel.NewEnv(opts...)
}

func build(source string, condition bool) (p *program, err error) {
	// The parser is generated code working on text that anyone may have written: a panic in it is a refusal.
	defer func() {
		if r := recover(); r != nil {
			p, err = nil, fmt.Errorf("cannot be compiled: %v", r)
		}
	}()
	if strings.TrimSpace(source) == "" {
		return nil, errors.New("is empty; write a CEL expression")
	}
	if len(source) > maxSource {
		return nil, fmt.Errorf("is %d bytes long; at most %d are allowed", len(source), maxSource)
	}
	scope, environment := InSelector, selectorEnv
	if condition {
		scope, environment = InCondition, conditionEnv
	}
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("CEL environment: %w", err)
	}
	checked, issues := env.Compile(source)
	if issues.Err() != nil {
		return nil, oneLine(issues, scope)
	}
	p = &program{source: source, ast: checked, loopVars: map[string]bool{}}
	if err := p.checkNames(scope); err != nil {
		return nil, err
	}
	p.run, err = env.Program(checked,
		cel.EvalOptions(cel.OptOptimize),
		cel.CostLimit(maxCost),
		cel.InterruptCheckFrequency(interruptEvery),
		cel.CustomDecoratorV2(absentIsNull()),
		cel.CustomDecoratorV2(numbersMix),
	)
	if err != nil {
		return nil, fmt.Errorf("cannot be compiled: %w", err)
	}
	return p, nil
}

// oneLine turns CEL's report with its carets into one line, with what is allowed.
func oneLine(issues *cel.Issues, scope Scope) error {
	lines := make([]string, 0, len(issues.Errors()))
	for _, issue := range issues.Errors() {
		message := strings.TrimSuffix(issue.Message, " (in container '')")
		message = strings.Join(strings.Fields(message), " ")
		if before, _, ok := strings.Cut(message, " expecting {"); ok {
			message = before // the parser's list of every token there is
		}
		message = strings.Replace(message, "mismatched input '<EOF>'", "it ends too early", 1)
		if name, ok := strings.CutPrefix(message, "undeclared reference to "); ok {
			message = fmt.Sprintf("unknown name %s; known here: %s", name, strings.Join(scope.variables(), ", "))
		}
		line := message
		if issue.Location.Line() > 0 {
			line = fmt.Sprintf("column %d: %s", issue.Location.Column()+1, message)
			if issue.Location.Line() > 1 {
				line = fmt.Sprintf("line %d, %s", issue.Location.Line(), line)
			}
		}
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
		if len(lines) == 3 {
			break // what follows a syntax error is mostly its echo
		}
	}
	return errors.New(strings.Join(lines, "; "))
}

// checkNames refuses fields that a variable cannot have, and loop variables that hide one of ours.
func (p *program) checkNames(scope Scope) error {
	var fault error
	walk(p.ast.NativeRep().Expr(), func(e ast.Expr) {
		if e.Kind() != ast.ComprehensionKind {
			return
		}
		loop := e.AsComprehension()
		for _, name := range []string{loop.IterVar(), loop.IterVar2()} {
			if slices.Contains(scope.variables(), name) && fault == nil {
				fault = fmt.Errorf("%q cannot name the element of a loop: it is a variable; choose another name", name)
			}
			p.loopVars[name] = true
		}
		p.loopVars[loop.AccuVar()] = true
	})
	walk(p.ast.NativeRep().Expr(), func(e ast.Expr) {
		root, steps := chain(e)
		known, fixed := fields[root]
		if !fixed || len(steps) == 0 || steps[0].name == "" || slices.Contains(known, steps[0].name) || fault != nil {
			return
		}
		fault = fmt.Errorf("%s has no field %q; it has: %s", root, steps[0].name, strings.Join(known, ", "))
	})
	return fault
}

// evaluate runs the program; an error is one line, for people.
func (p *program) evaluate(ctx context.Context, input map[string]any) (policy.Value, error) {
	out, _, err := p.run.ContextEval(ctx, input)
	if err != nil {
		if ctx.Err() != nil {
			return policy.Value{}, fmt.Errorf("%q: %w", p.source, context.Cause(ctx))
		}
		return policy.Value{}, p.explain(err, input)
	}
	switch v := out.(type) {
	case types.Bool:
		return policy.Value{V: bool(v)}, nil
	case types.String:
		return policy.Value{V: string(v)}, nil
	case types.Int:
		return policy.Value{V: float64(v)}, nil
	case types.Uint:
		return policy.Value{V: float64(v)}, nil
	case types.Double:
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return policy.Value{}, fmt.Errorf("%q gives %v, which is not a number to go by", p.source, v)
		}
		return policy.Value{V: float64(v)}, nil
	case types.Null:
		return policy.Value{}, nil
	default:
		return policy.Value{}, fmt.Errorf("%q gives a %s; allowed are true or false, a number, a text or null", p.source, typeName(out.Type().TypeName()))
	}
}

func typeName(name string) string {
	switch name {
	case "double", "int", "uint":
		return "number"
	case "string":
		return "text"
	case "null_type":
		return "null"
	default:
		return name
	}
}

// isEquality reports whether a call compares for equality, which null takes part in.
func isEquality(function string) bool {
	return function == operators.Equals || function == operators.NotEquals
}
