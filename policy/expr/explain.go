package expr

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/interpreter"
	"github.com/google/cel-go/parser"
)

// explain says in one line why an evaluation failed. CEL says "no such overload" where a person would say that a key is
// absent, so the operands of the call that failed are looked up again, by their names.
func (p *program) explain(err error, input map[string]any) error {
	var cancelled interpreter.EvalCancelledError
	if errors.As(err, &cancelled) && cancelled.Cause == interpreter.CostLimitExceeded {
		return fmt.Errorf("%q costs too much to evaluate; at most %d steps are allowed", p.source, maxCost)
	}
	root := p.ast.NativeRep().Expr()
	var failed ast.Expr
	var celErr *types.Err
	if errors.As(err, &celErr) && celErr.NodeID() > 0 {
		walk(root, func(e ast.Expr) {
			if e.ID() == celErr.NodeID() {
				failed = e
			}
		})
	}
	message := err.Error()
	suspects := []ast.Expr{}
	if failed != nil {
		suspects = operands(failed)
	}
	if len(suspects) == 0 && nullMayBeWhy(message) {
		walk(root, func(e ast.Expr) { suspects = append(suspects, operands(e)...) })
	}
	for _, suspect := range suspects {
		if reason := absent(suspect, input); reason != "" {
			return errors.New(reason)
		}
	}
	text := p.source
	if failed != nil {
		if part, errText := parser.Unparse(failed, p.ast.NativeRep().SourceInfo()); errText == nil {
			text = part
		}
	}
	if strings.HasPrefix(message, "no such overload") {
		message = "the types of its operands do not go together"
	}
	return fmt.Errorf("%q: %s", text, message)
}

// nullMayBeWhy reports whether cel-go words an error so when it meets null where it needs something else, without saying
// at which call.
func nullMayBeWhy(message string) bool {
	for _, words := range []string{"no such overload", "expected iterable type", "invalid qualifier type"} {
		if strings.Contains(message, words) {
			return true
		}
	}
	return false
}

// operands lists what a node cannot bear to be null.
func operands(e ast.Expr) []ast.Expr {
	switch e.Kind() {
	case ast.ComprehensionKind:
		return []ast.Expr{e.AsComprehension().IterRange()}
	case ast.CallKind:
	default:
		return nil
	}
	call := e.AsCall()
	switch function := call.FunctionName(); {
	case isEquality(function):
		return nil
	case function == operators.Index:
		return call.Args()[1:]
	case function == operators.Conditional:
		return call.Args()[:1]
	case function == operators.LogicalAnd || function == operators.LogicalOr:
		var terms []ast.Expr
		for _, arg := range call.Args() {
			if arg.Kind() == ast.CallKind && arg.AsCall().FunctionName() == function {
				terms = append(terms, operands(arg)...)
			} else {
				terms = append(terms, arg)
			}
		}
		return terms
	case call.IsMemberFunction():
		return append([]ast.Expr{call.Target()}, call.Args()...)
	default:
		return call.Args()
	}
}

// step is one link of a chain: a constant name, or an expression that gives it.
type step struct {
	name string
	from ast.Expr
}

// chain reads `a.b["c"][d]` as its root variable and its steps; the root is "" for anything else.
func chain(e ast.Expr) (root string, steps []step) {
	switch e.Kind() {
	case ast.IdentKind:
		return e.AsIdent(), nil
	case ast.SelectKind:
		root, steps = chain(e.AsSelect().Operand())
		return root, append(steps, step{name: e.AsSelect().FieldName()})
	case ast.CallKind:
		call := e.AsCall()
		if call.FunctionName() != operators.Index || len(call.Args()) != 2 {
			return "", nil
		}
		root, steps = chain(call.Args()[0])
		key := call.Args()[1]
		if key.Kind() == ast.LiteralKind {
			if name, ok := key.AsLiteral().(types.String); ok {
				return root, append(steps, step{name: string(name)})
			}
		}
		return root, append(steps, step{from: key})
	default:
		return "", nil
	}
}

// absent says that a chain ends at an absent key or at null; "" if it does not, or cannot be told.
func absent(e ast.Expr, input map[string]any) string {
	_, reason := follow(e, input)
	return reason
}

func follow(e ast.Expr, input map[string]any) (value any, reason string) {
	root, steps := chain(e)
	value, ok := input[root]
	if !ok {
		return nil, ""
	}
	path := root
	for _, s := range steps {
		name := s.name
		if s.from != nil {
			key, keyReason := follow(s.from, input)
			if keyReason != "" {
				return nil, keyReason
			}
			if name, ok = key.(string); !ok {
				return nil, ""
			}
		}
		here, isMap := value.(map[string]any)
		if !isMap {
			return nil, ""
		}
		next, present := here[name]
		if !present {
			return nil, missing(name, path)
		}
		value, path = next, path+accessor(name)
	}
	if value == nil {
		return nil, path + " is null"
	}
	return value, ""
}

func missing(key, path string) string { return fmt.Sprintf("no key %q in %s", key, path) }

// accessor writes a key as people would: `.tier`, or `["gpu-type"]` where a dot would not do.
func accessor(name string) string {
	for i, r := range name {
		letter := r == '_' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return fmt.Sprintf("[%q]", name)
		}
	}
	if name == "" {
		return `[""]`
	}
	return "." + name
}

// walk visits a node and everything under it, in the order of evaluation for calls.
func walk(e ast.Expr, visit func(ast.Expr)) {
	if e == nil {
		return
	}
	visit(e)
	switch e.Kind() {
	case ast.CallKind:
		call := e.AsCall()
		if call.IsMemberFunction() {
			walk(call.Target(), visit)
		}
		for _, arg := range call.Args() {
			walk(arg, visit)
		}
	case ast.SelectKind:
		walk(e.AsSelect().Operand(), visit)
	case ast.ListKind:
		for _, element := range e.AsList().Elements() {
			walk(element, visit)
		}
	case ast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			walk(entry.AsMapEntry().Key(), visit)
			walk(entry.AsMapEntry().Value(), visit)
		}
	case ast.StructKind:
		for _, field := range e.AsStruct().Fields() {
			walk(field.AsStructField().Value(), visit)
		}
	case ast.ComprehensionKind:
		loop := e.AsComprehension()
		for _, part := range []ast.Expr{loop.IterRange(), loop.AccuInit(), loop.LoopCondition(), loop.LoopStep(), loop.Result()} {
			walk(part, visit)
		}
	}
}
