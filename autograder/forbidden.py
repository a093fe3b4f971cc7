"""Read what an answer uses: ready-made answers, other answers. Best effort: code can hide."""

from __future__ import annotations

import ast


def find_forbidden(sources, name, forbid, given=()):
    """Find a forbidden name in an answer or in the helpers that it uses.

    Parameters
    ----------
    sources : sequence of str
        The learner's cells, as Python.
    name : str
        The name that the answer binds.
    forbid : sequence of str
        Dotted names: ``"torch.softmax"`` forbids it and all inside it, under any alias;
        ``".softmax"`` forbids every attribute of that name.
    given : sequence of str
        Cells that came with the notebook. Their imports count, their functions may be used.

    Returns
    -------
    str or None
        What was used, as the learner would write it in full.
    """
    for used in names_reached(sources, name, given):
        for entry in forbid:
            if _matches(used, entry):
                return used.lstrip("?.")
    return None


def names_reached(sources, name, given=()):
    """Yield the dotted names that an answer reads, by itself or through its helpers.

    Parameters
    ----------
    sources, name, given
        See `find_forbidden`.

    Yields
    ------
    str
        ``"numpy.exp"``, ``"helper"``; ``"?.dot"`` for an attribute of something unknown.
    """
    aliases, definitions = {}, {}
    for tree in _parsed(given):
        aliases |= _imports(tree)
    for tree in _parsed(sources):
        aliases |= _imports(tree)
        for node in tree.body:
            for bound in _bound_by(node):
                definitions.setdefault(bound, []).append(node)
    todo, seen = [name], set()
    while todo:
        current = todo.pop()
        if current in seen:
            continue
        seen.add(current)
        for node in definitions.get(current, []):
            known = aliases | dict.fromkeys(_local_names(node), "?") | _imports(node)
            for used in _names_used(node, known):
                yield used
                todo.append(used)


def latest_definitions(cells):
    """Keep of cells that ran one after another what each name was bound to last.

    Parameters
    ----------
    cells : sequence of str
        As Python, in the order in which they ran.

    Returns
    -------
    list of str
        The statements that count, without those that a later one replaced.
    """
    latest = {
        bound: node for tree in _parsed(cells) for node in tree.body for bound in _bound_by(node)
    }
    return [ast.unparse(node) for node in dict.fromkeys(latest.values())]


def _parsed(sources):
    for source in sources:
        try:
            yield ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            continue


def _matches(used, entry):
    if entry.startswith("."):
        return "." in used and used.endswith(entry)
    return used == entry or used.startswith(entry + ".")


def _imports(tree):
    """Map each imported name to what it stands for: ``{"F": "torch.nn.functional"}``."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    found[alias.asname] = alias.name
                else:
                    found[alias.name.split(".")[0]] = alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def _local_names(node):
    """Return the parameters and variables of the functions in a piece of code."""
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.arg):
            found.add(part.arg)
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            found |= {
                inner.id
                for inner in ast.walk(part)
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
            }
    return found


def _bound_by(node):
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return list(_imports(node))
    return [
        part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    ]


def _names_used(node, aliases):
    """Yield the dotted names that a piece of code reads, with aliases resolved."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name | ast.Attribute):
            yield _dotted(part, aliases)
        elif isinstance(part, ast.Call) and getattr(part.func, "id", "") == "getattr":
            if len(part.args) > 1 and isinstance(part.args[1], ast.Constant):
                yield f"{_dotted(part.args[0], aliases)}.{part.args[1].value}"
        elif isinstance(part, ast.Import):
            yield from (alias.name for alias in part.names)
        elif isinstance(part, ast.ImportFrom) and part.module:
            yield from (f"{part.module}.{alias.name}" for alias in part.names)


def _dotted(node, aliases):
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, aliases)}.{node.attr}"
    return "?"
