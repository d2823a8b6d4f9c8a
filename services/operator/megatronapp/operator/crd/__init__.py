"""The custom resource's definition, made from the models of `core.trainingjob`."""

from megatronapp.operator.crd.definition import GROUP, KIND, PLURAL, VERSION, definition

__all__ = ["GROUP", "KIND", "PLURAL", "VERSION", "definition"]
